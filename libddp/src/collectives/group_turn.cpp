// The right to drive a group, and what is done without it: a call of a backend that does not come back keeps it, and
// the group must fail by its deadline all the same. For NCCL, the abort of the communicator ends such a call.
#include "base/library_thread.hpp"
#include "collectives/group_driver.hpp"

namespace ddp::collectives {
namespace {

// A failed group is aborted within microseconds by whoever drives it. If nobody has by then, a call does not come back.
constexpr std::chrono::seconds kLongestFailing{1};
// Between two tries to look into a group that others keep: each makes the process's other groups wait.
constexpr std::chrono::milliseconds kBetweenTurns{100};

}  // namespace

GroupDriver::Turn::Turn(GroupDriver& driver, Time limit) : driver_(driver) {
  WaitLadder ladder(false);
  while (driver_.driven_.exchange(true)) {
    const auto pause = ladder.pause();
    if (ladder.looked() && Deadline::Clock::now() >= limit) return;
    if (pause == std::chrono::microseconds::zero()) continue;
    std::this_thread::sleep_for(pause);
    ladder.rested();
  }
  taken_ = true;
}

GroupDriver::Turn::~Turn() {
  if (!taken_) return;
  const WorkList finished = std::exchange(driver_.finished_, {});
  driver_.driven_ = false;
  conclude(finished);
}

std::vector<Work> GroupDriver::unfinished_works() {
  std::vector<Work> works;
  const std::lock_guard lock(mutex_);
  for (WorkState& work : slots_) {
    if (!work.share_if_used()) continue;
    works.emplace_back(work);
    work.references.fetch_sub(1, std::memory_order_relaxed);  // not the last: the handle has one
  }
  return works;
}

std::optional<Concern> GroupDriver::overdue() {
  const Time now = Deadline::Clock::now();
  next_event_.store(Time::max().time_since_epoch().count());
  expect(now + kBetweenTurns);
  std::optional<Work> first;
  for (const Work& handle : unfinished_works()) {
    const WorkState& work = WorkState::of(handle);
    if (work.done() || work.comparison) continue;
    expect(work.investigate_at);
    if (work.investigate_at > now) continue;
    if (!first || work.investigate_at < WorkState::of(*first).investigate_at) first = handle;
  }
  if (!first) return std::nullopt;
  return Concern{.kind = Concern::Kind::deadline, .work = std::move(*first), .operation = 0};
}

void GroupDriver::look_for_held_turn(Time now) noexcept {
  if (!failed_ || ended_ || closing_) return held_since_.reset();
  if (!held_since_) held_since_ = now;
  if (now - *held_since_ < kLongestFailing) return;
  held_since_ = now;
  if (aborting_.exchange(true)) return;  // that has not come back either
  const auto abort = [self = shared_from_this()] {
    self->abort_backends();
    self->aborting_ = false;
  };
  if (!plugins_) return abort();
  try {  // not here, where it would hold up all groups if it hangs
    base::start_thread(abort).detach();
  } catch (const Error&) {
    abort();
  }
}

void GroupDriver::abort_backends() noexcept {
  resting_.fetch_add(1);  // they are not taken away meanwhile
  if (!no_rest_) {
    for (Lane& lane : lanes_) lane.carrier.backend->abort();
  }
  resting_.fetch_sub(1);
}

}  // namespace ddp::collectives
