#include "collectives/hierarchy/task.hpp"

namespace ddp::collectives::hierarchy {

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
