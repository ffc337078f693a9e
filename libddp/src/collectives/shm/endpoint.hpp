// A rank's socket for those with whom it may share memory. It exists before anybody knows who they are.
#pragma once

#include "base/unique_fd.hpp"
#include "collectives/shm/endpoint_address.hpp"

namespace ddp::collectives::shm {

class Endpoint {
 public:
  /// Listens; what prevents it becomes the address's refusal.
  Endpoint();

  const EndpointAddress& address() const { return address_; }
  /// -1 if this rank cannot share memory.
  int listener() const { return listener_.get(); }
  void stop_listening() { listener_.reset(); }

 private:
  EndpointAddress address_;
  base::UniqueFd listener_;
};

/// A connection to the rank with this address, not blocking; none if there is no room in its queue now. Throws Error:
/// peer_lost if nobody listens there, system.
base::UniqueFd connect_to(const EndpointAddress& address);

/// Whether the process at the other end belongs to this process's user.
bool same_user(int socket);

}  // namespace ddp::collectives::shm
