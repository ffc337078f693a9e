// How two ranks prove to each other that they belong to the same mesh, before the first byte of data is believed. Each
// rank has published an address, a port and a secret over the job's key-value store; who has read both secrets is of
// the job. After the handshake the accepting side gives its verdict. Secrets never cross the wire.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ddp/bytes.hpp>

#include "base/message_fields.hpp"
#include "base/unique_fd.hpp"
#include "stream/admission.hpp"
#include "stream/handshake.hpp"

namespace ddp::collectives::tcp {

using Key = std::array<std::byte, 32>;

/// What a rank publishes.
struct RankRecord {
  std::string address;  ///< numeric
  std::uint16_t port = 0;
  Key secret{};
  friend bool operator==(const RankRecord&, const RankRecord&) = default;
};
constexpr auto description(const RankRecord*) {
  using T = RankRecord;
  // 64 bytes are more than a numeric address has, with its scope
  return base::describe({"address of a rank"}, base::fields<&T::address>(base::Rule{.longest = 64}),
                        base::fields<&T::port>(base::Rule{.least = 1}), base::fields<&T::secret>());
}

/// Data is not sealed.
inline constexpr stream::Protocol kProtocol{.magic = "ddptcp\r\n",
                                            .version = 2,
                                            .name = "libddp's protocol between ranks",
                                            .listener = "rank",
                                            .opening_bytes = 8,
                                            .sealed = false,
                                            .accepting_first = true};

/// What the connecting side says of itself: ranks in the mesh.
struct Opening {
  std::uint32_t from = 0;
  std::uint32_t to = 0;
  friend bool operator==(const Opening&, const Opening&) = default;
};
constexpr auto description(const Opening*) {
  return base::describe({"greeting of a rank"}, base::fields<&Opening::from, &Opening::to>());
}

/// The accepting side's last word.
enum class Verdict : std::uint8_t {
  welcome = 1,  ///< frames may follow
  crossed = 2,  ///< this side is connecting, too, and its connection is the one that stays
};

Key random_key();

/// One rank's knowledge of a mesh: who is in it, where, and how each is proven.
class MeshIdentity {
 public:
  /// @param records of all ranks, as published. Throws Error(protocol) naming the rank.
  MeshIdentity(int rank, const std::vector<Bytes>& records);

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return static_cast<int>(records_.size()); }
  const RankRecord& record(int rank) const { return records_[static_cast<std::size_t>(rank)]; }

  /// Of both ranks' secrets and of this mesh.
  std::shared_ptr<stream::Prover> prover(const Opening& opening) const;
  /// For a rank that connects to this one. The object outlives it.
  std::unique_ptr<stream::Handshake> accept() const;
  std::unique_ptr<stream::Handshake> connect(int to) const;

 private:
  int rank_;
  std::vector<RankRecord> records_;
  Key mesh_{};  // stands for all records
};

/// The accepting side: this rank's listener, and connections that have not proven yet that they come from a rank. There
/// is room for all ranks at once beside strangers: those of one host may all come at the same time, and a slow listener
/// that closed each for the next would never get to the end of a proof. Never blocks.
class Admission {
 public:
  static constexpr std::size_t kMostStrangers = 128;

  struct Proven {
    int rank;
    base::UniqueFd socket;
  };

  /// Listens. Throws Error(system).
  explicit Admission(const std::string& address);

  std::uint16_t port() const noexcept { return port_; }
  int fd() const noexcept { return loop_.fd(); }  ///< readable when advance() has something to do
  /// From now on connections are accepted. @p identity outlives this object.
  void begin(const MeshIdentity& identity);
  /// Takes and answers what is there. @return those that have proven themselves; they wait for their Verdict.
  std::vector<Proven> advance();
  /// No rank is missing any more: strangers find nothing.
  void close() noexcept;
  std::size_t num_unproven() const noexcept { return door_ ? door_->size() : 0; }

 private:
  stream::EventLoop loop_;
  base::UnsharedFd listener_;  ///< until it begins
  std::uint16_t port_ = 0;
  std::vector<Proven> proven_;
  std::optional<stream::Admission> door_;
};

/// The connecting side: one attempt to reach a rank, up to its welcome. Never blocks.
class Outbound {
 public:
  enum class State : std::uint8_t {
    pending,
    welcome,    ///< frames may follow on take()
    crossed,    ///< the other rank is connecting, too, and wants its own connection
    gone,       ///< nobody, or somebody else, listens where the rank did
    broken,     ///< worth another attempt: problem() says what happened
    no_socket,  ///< this rank has none left: worth another attempt, too
  };

  /// @param identity outlives this object. @param address of this rank's interface.
  Outbound(const MeshIdentity& identity, int to, const std::string& address);

  State advance();
  int fd() const noexcept { return socket_.get(); }
  bool reached() const noexcept { return handshake_ != nullptr; }  ///< the host has accepted the connection
  int error() const noexcept { return error_; }                    ///< errno, or 0
  const std::string& problem() const noexcept { return problem_; }
  base::UniqueFd take() noexcept { return std::move(socket_); }

 private:
  State fail(State state, std::string problem, int error = 0);
  State finish_connecting();
  State shake_hands();

  const MeshIdentity* identity_;
  int to_;
  base::UniqueFd socket_;
  std::unique_ptr<stream::Handshake> handshake_;
  int error_ = 0;
  std::string problem_;
};

}  // namespace ddp::collectives::tcp
