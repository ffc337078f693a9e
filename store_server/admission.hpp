// Which client addresses the server admits: those known at its start, and those that show its secret later.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "store_server/peer_address.hpp"

namespace ddp::store_server {

struct AdmissionRules {
  /// Numeric addresses.
  std::vector<std::string> allowed;
  /// Further addresses may be admitted while the server runs. Otherwise an empty list admits all.
  bool by_proof = false;
  bool loopback = true;
};

class Admission {
 public:
  /// Throws Error(invalid_argument) for an address that is not numeric.
  explicit Admission(const AdmissionRules& rules);

  bool admits(const PeerAddress& peer) const;
  void admit(const PeerAddress& peer) { admitted_.insert(peer); }

 private:
  bool all_;
  bool loopback_;
  std::set<PeerAddress> admitted_;
};

}  // namespace ddp::store_server
