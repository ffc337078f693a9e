// The connecting side: one attempt to reach a rank, up to its welcome.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "base/unique_fd.hpp"
#include "collectives/tcp/handshake.hpp"

namespace ddp::collectives::tcp {

/// Never blocks.
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
  bool reached() const noexcept { return phase_ != Phase::connecting; }  ///< the host has accepted the connection
  int error() const noexcept { return error_; }                          ///< errno, or 0
  const std::string& problem() const noexcept { return problem_; }
  base::UniqueFd take() noexcept { return std::move(socket_); }

 private:
  enum class Phase : std::uint8_t { connecting, challenged, judged };

  State fail(State state, std::string problem, int error = 0);
  State finish_connecting();
  State answer_challenge();

  const MeshIdentity* identity_;
  int to_;
  base::UniqueFd socket_;
  Phase phase_ = Phase::connecting;
  Hello hello_{};
  std::array<std::byte, kChallengeBytes> received_{};
  std::size_t filled_ = 0;
  int error_ = 0;
  std::string problem_;
};

}  // namespace ddp::collectives::tcp
