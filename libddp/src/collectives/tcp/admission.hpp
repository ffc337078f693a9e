// The accepting side: this rank's listener, and connections that have not proven yet that they come from a rank.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>

#include "base/connection_source.hpp"
#include "base/unique_fd.hpp"
#include "collectives/tcp/handshake.hpp"

namespace ddp::collectives::tcp {

/// Strangers may connect, scan, hold, or send garbage: each has room for one message and 5 s, and where there are too
/// many, those of the source that has the most are closed, the oldest and those that have said nothing right first.
/// There is room for all ranks at once beside strangers: those of one host may all come at the same time, and a slow
/// listener that closed each for the next would never get to the end of a proof. Never blocks.
class Admission {
 public:
  static constexpr std::size_t kMostStrangers = 128;
  static constexpr std::chrono::seconds kPatience{5};

  struct Proven {
    int rank;
    base::UniqueFd socket;
  };

  /// Listens. Throws Error(system).
  explicit Admission(const std::string& address);

  std::uint16_t port() const;
  int fd() const noexcept { return poller_.get(); }  ///< readable when advance() has something to do
  /// No descriptor was left: advance() has to be called without an event, too, until there is one.
  bool muted() const noexcept { return muted_; }
  /// From now on connections are accepted. @p identity outlives this object.
  void begin(const MeshIdentity& identity);
  /// Takes and answers what is there. @return those that have proven themselves; they wait for their Verdict.
  std::vector<Proven> advance();
  /// No rank is missing any more: strangers find nothing.
  void close() noexcept;
  std::size_t num_unproven() const noexcept { return unproven_.size(); }
  std::size_t most_unproven() const noexcept;

 private:
  struct Unproven {
    base::UniqueFd socket;
    base::ConnectionSource source;
    Deadline until;
    std::uint64_t serial;
    bool said_hello = false;
    Hello hello{};
    Nonce nonce{};
    std::array<std::byte, kHelloBytes> received{};
    std::size_t filled = 0;
  };
  using Place = std::list<Unproven>::iterator;

  bool watch(int fd, std::uint64_t serial);
  void accept_waiting();
  bool make_room();
  void drop(Place place);
  /// @return whether it stays; proven ones are in @p proven, then.
  bool read(Unproven& one, std::vector<Proven>& proven);
  bool answer_hello(Unproven& one);

  const MeshIdentity* identity_ = nullptr;
  base::UniqueFd poller_;
  base::UnsharedFd listener_;
  std::list<Unproven> unproven_;  // the oldest first
  base::SourceShares shares_;     // of these
  std::uint64_t serial_ = 0;      // 0 stands for the listener
  bool muted_ = false;            // no descriptors are left; the listener is not watched
  Deadline muted_until_ = Deadline::after(std::chrono::seconds(0));
};

}  // namespace ddp::collectives::tcp
