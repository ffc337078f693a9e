// The addresses of this host, in its network namespace.
#pragma once

#include <chrono>
#include <set>
#include <vector>

#include "store_server/peer_address.hpp"

namespace ddp::store_server {

/// Of the interfaces, loopback included. Empty where they cannot be read.
std::vector<PeerAddress> own_addresses();

/// Knows them, and reads them anew when it does not know one, at most once a second.
class OwnAddresses {
 public:
  bool contain(const PeerAddress& address);

 private:
  std::set<PeerAddress> known_;
  std::chrono::steady_clock::time_point read_at_{};
};

}  // namespace ddp::store_server
