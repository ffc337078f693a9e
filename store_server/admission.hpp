// Which addresses clients may come from: those that are known when the server starts, and those that prove themselves.
#pragma once

#include <set>
#include <string>
#include <vector>

#include "store_server/peer_address.hpp"

namespace ddp::store_server {

struct AdmissionRules {
  /// Numeric addresses.
  std::vector<std::string> allowed;
  /// Further addresses are admitted while the server runs. Without that, an empty list admits everybody.
  bool by_proof = false;
  bool loopback = true;
};

/// The clients that a server lets in.
class Admission {
 public:
  /// Throws Error(invalid_argument) for what is no numeric address.
  explicit Admission(const AdmissionRules& rules);

  bool admits(const PeerAddress& peer) const;
  /// From now on.
  void admit(const PeerAddress& peer) { admitted_.insert(peer); }

 private:
  bool everybody_;
  bool loopback_;
  std::set<PeerAddress> admitted_;
};

}  // namespace ddp::store_server
