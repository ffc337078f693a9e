#include "store_server/pending_connections.hpp"

#include <algorithm>
#include <utility>

namespace ddp::store_server {

void PendingConnections::add(std::uint64_t serial, const PendingConnection& connection, bool admitted) {
  (admitted ? admitted_ : unadmitted_).emplace(serial, connection);
  if (!admitted) shares_.add(connection.source);
}

PendingConnections::BySerial::node_type PendingConnections::take_unadmitted(std::uint64_t serial) {
  auto taken = unadmitted_.extract(serial);
  if (taken) shares_.remove(taken.mapped().source);
  return taken;
}

void PendingConnections::remove(std::uint64_t serial) {
  admitted_.erase(serial);
  take_unadmitted(serial);
}

void PendingConnections::admit(std::uint64_t serial) {
  if (auto taken = take_unadmitted(serial)) admitted_.insert(std::move(taken));
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
  if (!unadmitted_.empty()) {
    const auto victim =
        std::find_if(unadmitted_.begin(), unadmitted_.end(),
                     [source = shares_.largest()](const auto& each) { return each.second.source == source; });
    return victim->second.fd;
  }
  if (!admitted_.empty()) return admitted_.begin()->second.fd;
  return std::nullopt;
}

}  // namespace ddp::store_server
