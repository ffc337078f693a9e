#include "collectives/hierarchy/part.hpp"

#include <algorithm>

namespace ddp::collectives::hierarchy {

Part::Part(std::unique_ptr<Backend> backend, std::vector<int> ranks)
    : backend_(std::move(backend)), ranks_(std::move(ranks)) {
  if (backend_) most_collectives_ = static_cast<std::size_t>(std::max(1, backend_->traits().concurrent_collectives));
}

bool Part::has_room(bool messages) const {
  return count_ < kMostFlights && (messages || collectives_ < most_collectives_);
}

void Part::start(Task& task, std::size_t stage) {
  Flight& made = flight(count_);
  made.operations.clear();
  const Stage& what = task.job().stage(stage);
  const std::size_t segment = task.posted(stage);
  what.step(task.job(), segment, made.operations);
  made.task = &task;
  made.stage = stage;
  made.message = what.messages;
  made.request = nullptr;
  ++count_;
  if (!made.operations.empty()) {
    for (Operation& operation : made.operations) operation.sequence = task.job().mark();
    made.request = &backend_->init(made.operations, task.deadline());
    if (!made.message) ++collectives_;
    add_busy(1);
    made.request->post();
  }
  retire();
}

Part::Look Part::poll() {
  Look look;
  for (std::size_t index = 0; index < count_; ++index) {
    Flight& each = flight(index);
    if (each.request == nullptr) continue;
    const Outcome outcome = each.request->poll();
    if (outcome == Outcome::running) continue;
    look.moved = true;
    if (outcome != Outcome::ok) {
      if (each.task != nullptr) each.task->give_up();
      if (look.outcome == Outcome::running) {
        look.outcome = outcome;
        look.failure = in_group(each.request->failure());
        look.task = each.task;
      }
    }
    end(each);
  }
  if (look.moved) retire();
  return look;
}

bool Part::uses(const Task& task) const {
  for (std::size_t index = 0; index < count_; ++index) {
    if (flight(index).request != nullptr && flight(index).task == &task) return true;
  }
  return false;
}

void Part::drop(const Task& task) {
  for (std::size_t index = 0; index < count_; ++index) {
    Flight& each = flight(index);
    if (each.task != &task) continue;
    if (each.request != nullptr) end(each);
    each.task = nullptr;
  }
}

Failure Part::in_group(Failure failure) const {
  for (int& rank : failure.ranks) rank = ranks_[static_cast<std::size_t>(rank)];
  std::sort(failure.ranks.begin(), failure.ranks.end());
  if (failure.message) {
    int& sender = failure.message->receive.root;
    sender = ranks_[static_cast<std::size_t>(sender)];
  }
  return failure;
}

void Part::end(Flight& flight) {
  flight.request->release();
  flight.request = nullptr;
  if (!flight.message) --collectives_;
  add_busy(-1);
}

void Part::retire() {
  while (count_ > 0 && flight(0).request == nullptr) {
    if (flight(0).task != nullptr && !flight(0).task->given_up()) flight(0).task->ended(flight(0).stage);
    flight(0).task = nullptr;
    first_ = (first_ + 1) % kMostFlights;
    --count_;
  }
}

}  // namespace ddp::collectives::hierarchy
