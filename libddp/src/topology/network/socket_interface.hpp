// The network interface over which a rank is reached.
#pragma once

#include <string>

namespace ddp::topology {

struct SocketInterface {
  std::string name;       ///< "eth0"; empty: none was chosen
  std::string address{};  ///< numeric
  std::string reason{};   ///< one sentence
  friend bool operator==(const SocketInterface&, const SocketInterface&) = default;
};

}  // namespace ddp::topology
