#include "store_server/pending_connections.hpp"

namespace ddp::store_server {

void PendingConnections::add(std::uint64_t serial, int fd, Deadline deadline, bool stranger) {
  (stranger ? strangers_ : members_).insert_or_assign(serial, Pending{.fd = fd, .deadline = deadline});
}

void PendingConnections::remove(std::uint64_t serial) {
  members_.erase(serial);
  strangers_.erase(serial);
}

std::optional<Deadline> PendingConnections::next_deadline() const {
  std::optional<Deadline> next;
  for (const BySerial* group : {&members_, &strangers_}) {
    if (group->empty()) continue;
    const Deadline first = group->begin()->second.deadline;
    next = next ? earlier(*next, first) : first;
  }
  return next;
}

std::optional<int> PendingConnections::late() const {
  for (const BySerial* group : {&members_, &strangers_}) {
    if (!group->empty() && group->begin()->second.deadline.expired()) return group->begin()->second.fd;
  }
  return std::nullopt;
}

std::optional<int> PendingConnections::first_to_go() const {
  for (const BySerial* group : {&strangers_, &members_}) {
    if (!group->empty()) return group->begin()->second.fd;
  }
  return std::nullopt;
}

std::vector<int> PendingConnections::strangers() const {
  std::vector<int> descriptors;
  for (const auto& [serial, pending_one] : strangers_) descriptors.push_back(pending_one.fd);
  return descriptors;
}

}  // namespace ddp::store_server
