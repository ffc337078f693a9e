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

void Task::begin(const Layout& layout, const Operation& operation, Deadline deadline, std::size_t segment_bytes) {
  job_.plan(layout, operation, segment_bytes);
  deadline_ = deadline;
  posted_.fill(0);
  ended_.fill(0);
  given_up_ = false;
  const std::size_t needed = job_.slot_bytes() * std::min(kSlots, job_.segments());
  if (needed > temporary_bytes_) {
    temporary_.reset();
    temporary_bytes_ = 0;
    temporary_ = std::make_unique_for_overwrite<std::byte[]>(needed);
    temporary_bytes_ = needed;
  }
  job_.give(temporary_.get());
}

std::optional<std::size_t> Task::next(Scope scope) const {
  std::optional<std::size_t> best;
  std::size_t turn = 0;
  for (std::size_t stage = 0; stage < job_.stages(); ++stage) {
    const Lane lane = job_.stage(stage).lane;
    if (lane == Lane::local || (lane == Lane::inner) != (scope == Scope::domain)) continue;
    if (posted_[stage] == job_.segments()) continue;
    const std::size_t its_turn = posted_[stage] + job_.stage(stage).lag;
    if (best && turn <= its_turn) continue;
    best = stage;
    turn = its_turn;
  }
  return best;
}

bool Task::ready(std::size_t stage) const {
  const std::size_t segment = posted_[stage];
  for (std::size_t other = 0; other < job_.stages(); ++other) {
    if ((job_.stage(stage).needs >> other & 1U) != 0 && ended_[other] <= segment) return false;
    if (segment >= kSlots && ended_[other] <= segment - kSlots) return false;  // its temporary memory is in use
  }
  return true;
}

bool Task::over() const {
  for (std::size_t stage = 0; stage < job_.stages(); ++stage) {
    if (ended_[stage] < job_.segments()) return false;
  }
  return true;
}

}  // namespace ddp::collectives::hierarchy
