// A node's witness reports to the store of another host which of this node's connections belong to the job's user.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <ddp/deadline.hpp>

#include "store_server/store_key.hpp"

namespace ddp::store_server {

/// Answers from its own thread until the store ends, or it is destroyed. Where the store needs none (it is on this
/// host, or another process of this host is its witness), the object does nothing.
class Witness {
 public:
  /// Connects to the store at the numeric @p address; both sides prove that they know @p key. On return the store knows
  /// this host. Throws Error: invalid_argument (address not numeric), unavailable (refused, or blocked; or this host's
  /// connections reach the store from another address, which the cause names), peer_lost, timeout, conflict (who
  /// listens there does not know the key).
  Witness(const std::string& address, std::uint16_t port, const StoreKey& key, Deadline deadline);
  Witness& operator=(Witness&&) = delete;
  ~Witness();

  /// Returns when the store has ended; at once where it needs no witness.
  void wait();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Connects as any client does, and has a PING answered: so the store at the numeric @p address serves this host's
/// processes. Throws Error: unavailable (refused, blocked, or not admitted), timeout, protocol (another kind of
/// server).
void check_served(const std::string& address, std::uint16_t port, Deadline deadline);

}  // namespace ddp::store_server
