// Where the coordinator of a job is, and the secret that proves who may talk to it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "control/handshake.hpp"

namespace ddp::launcher {

/// Where the coordinator is.
struct RendezvousPoint {
  std::vector<std::string> addresses{};  ///< numeric or names, best first
  std::uint16_t port = 0;
  control::Secret secret;
  std::string host{};  ///< the coordinator's, for messages; empty: not known

  /// For an environment variable: "addr,addr;port;secret;host", the last part optional. decode() throws
  /// Error(invalid_argument).
  std::string encode() const;
  static RendezvousPoint decode(const std::string& text);
};

}  // namespace ddp::launcher
