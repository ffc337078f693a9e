#include "store_server/pending_connections.hpp"

namespace ddp::store_server {

void PendingConnections::add(std::uint64_t serial, int fd, Deadline deadline, bool admitted) {
  (admitted ? admitted_ : unadmitted_).insert_or_assign(serial, Pending{.fd = fd, .deadline = deadline});
}

void PendingConnections::remove(std::uint64_t serial) {
  admitted_.erase(serial);
  unadmitted_.erase(serial);
}

std::optional<Deadline> PendingConnections::next_deadline() const {
  std::optional<Deadline> next;
  for (const BySerial* group : {&admitted_, &unadmitted_}) {
    if (group->empty()) continue;
    const Deadline first = group->begin()->second.deadline;
    next = next ? earlier(*next, first) : first;
  }
  return next;
}

std::optional<int> PendingConnections::expired() const {
  for (const BySerial* group : {&admitted_, &unadmitted_}) {
    if (!group->empty() && group->begin()->second.deadline.expired()) return group->begin()->second.fd;
  }
  return std::nullopt;
}

std::optional<int> PendingConnections::eviction_candidate() const {
  for (const BySerial* group : {&unadmitted_, &admitted_}) {
    if (!group->empty()) return group->begin()->second.fd;
  }
  return std::nullopt;
}

}  // namespace ddp::store_server
