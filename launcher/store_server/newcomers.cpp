#include "store_server/newcomers.hpp"

namespace ddp::launcher::store_server {

void Newcomers::add(std::uint64_t serial, int fd, Deadline deadline, bool stranger) {
  (stranger ? strangers_ : members_).insert_or_assign(serial, Newcomer{.fd = fd, .deadline = deadline});
}

void Newcomers::remove(std::uint64_t serial) {
  members_.erase(serial);
  strangers_.erase(serial);
}

std::optional<Deadline> Newcomers::next_deadline() const {
  std::optional<Deadline> next;
  for (const BySerial* group : {&members_, &strangers_}) {
    if (group->empty()) continue;
    const Deadline first = group->begin()->second.deadline;
    next = next ? earlier(*next, first) : first;
  }
  return next;
}

std::optional<int> Newcomers::late() const {
  for (const BySerial* group : {&members_, &strangers_}) {
    if (!group->empty() && group->begin()->second.deadline.expired()) return group->begin()->second.fd;
  }
  return std::nullopt;
}

std::optional<int> Newcomers::first_to_go() const {
  for (const BySerial* group : {&strangers_, &members_}) {
    if (!group->empty()) return group->begin()->second.fd;
  }
  return std::nullopt;
}

std::vector<int> Newcomers::strangers() const {
  std::vector<int> descriptors;
  for (const auto& [serial, newcomer] : strangers_) descriptors.push_back(newcomer.fd);
  return descriptors;
}

}  // namespace ddp::launcher::store_server
