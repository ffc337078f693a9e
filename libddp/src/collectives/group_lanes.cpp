// How GroupDriver takes operations from submission to their end. All of it runs on the thread that drives the group.
#include <algorithm>

#include <fmt/format.h>

#include "collectives/flight/flight_output.hpp"
#include "collectives/group_driver.hpp"

namespace ddp::collectives {
namespace {

// Completed operations in a row after which others get their turn.
constexpr int kLongestRun = 16;

std::vector<int> in_world(const GroupMembers& members, const std::vector<int>& ranks) {
  std::vector<int> global;
  for (const int rank : ranks) {
    if (rank >= 0 && rank < members.size()) global.push_back(members.global(rank));
  }
  std::sort(global.begin(), global.end());
  return global;
}

Error mismatch(const Operation& operation, const Failure& failure, std::vector<int> ranks) {
  return Error{{.code = ErrorCode::mismatch,
                .attempted = operation.description(),
                .cause = failure.cause.empty() ? "the ranks called different things" : failure.cause,
                .native = failure.native,
                .ranks = std::move(ranks),
                .hint = "every rank must call the same collectives in the same order"}};
}

std::string text_of(const Failure& failure) {
  if (failure.native.empty()) return failure.cause;
  return failure.cause.empty() ? failure.native : fmt::format("{}: {}", failure.cause, failure.native);
}

/// Of what a backend reports. What another rank has found is no proof here: that one says more to all who ask.
Error error_of(const GroupMembers& members, const Operation& operation, Outcome outcome, const Failure& failure) {
  if (outcome == Outcome::mismatch && failure.message) return unfit_message(members, *failure.message);
  std::vector<int> ranks = in_world(members, failure.ranks);
  if (outcome == Outcome::mismatch && !failure.elsewhere) return mismatch(operation, failure, std::move(ranks));
  return communication_failure(operation, text_of(failure), std::move(ranks));
}

}  // namespace

bool GroupDriver::attempt() noexcept {
  bool moved = false;
  while (!driven_.load(std::memory_order_relaxed) && !driven_.exchange(true)) {
    moved = drive() || moved;
    const WorkList finished = std::exchange(finished_, {});
    driven_.store(false);
    conclude(finished);
    // what was submitted meanwhile, by a thread that found this one driving
    if (inbox_.load() == nullptr) break;
  }
  return moved;
}

bool GroupDriver::drive() noexcept {
  drives_.store(drives_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  if (gone_) return false;
  admit();
  if (failed_.load(std::memory_order_acquire) || closing_.load(std::memory_order_relaxed)) return give_up();
  bool moved = false;
  for (Lane& lane : lanes_) moved = advance(lane) || moved;
  return moved;
}

void GroupDriver::admit() noexcept {
  if (inbox_.load(std::memory_order_relaxed) == nullptr) return;
  WorkState* newest = inbox_.exchange(nullptr, std::memory_order_acquire);
  WorkState* oldest = nullptr;
  while (newest != nullptr) {
    WorkState* const older = std::exchange(newest->next, oldest);
    oldest = std::exchange(newest, older);
  }
  while (oldest != nullptr) {
    WorkState& work = *std::exchange(oldest, oldest->next);
    early_.insert(work, [this](const WorkState& one) { return (one.place - next_place_) % kPlaces; });
  }
  while (!early_.empty() && early_.front()->place == next_place_) {
    WorkState& work = early_.pop();
    work.lane->queue.push(work);
    next_place_ = (next_place_ + 1) % kPlaces;
  }
}

bool GroupDriver::advance(Lane& lane) noexcept {
  bool moved = false;
  for (int run = 0; run < kLongestRun; ++run) {
    moved = start(lane) || moved;
    if (!poll(lane)) break;
    moved = true;
    if (lane.queue.empty()) break;
  }
  return moved;
}

/// Collectives start in issue order, and not before earlier transfers are over; transfers not before earlier
/// collectives are over.
bool GroupDriver::start(Lane& lane) noexcept {
  bool started = false;
  while (!stuck_.load(std::memory_order_relaxed) && !lane.queue.empty()) {
    WorkState& head = *lane.queue.front();
    if (head.gate != nullptr && !head.gate->done()) break;
    if (lane.traits.stream_ordered) {
      lane.queue.pop();
      post(lane, head);
      started = true;
      continue;
    }
    const bool transfers = static_cast<int>(lane.posted.size()) > lane.collectives;
    if (head.is_transfer() ? lane.collectives > 0
                           : transfers || lane.collectives >= lane.traits.concurrent_collectives) {
      break;
    }
    lane.queue.pop();
    post(lane, head);
    started = true;
  }
  return started;
}

void GroupDriver::post(Lane& lane, WorkState& work) noexcept {
  lane.posted.push_back(&work);
  lane.collectives += work.is_transfer() ? 0 : 1;
  try {
    work.request = &lane.carrier.backend->init(work.operations(), work.deadline);
  } catch (const std::exception& problem) {
    return note_failure(work, communication_failure(work.operations().front(), problem.what()));
  }
  if (!lane.traits.stream_ordered) {
    for (const FlightGroup::Slot slot : work.flight) flight_->started(slot);
  }
  work.request->post();
  work.phase.store(WorkState::Phase::posted, std::memory_order_release);
}

bool GroupDriver::poll(Lane& lane) noexcept {
  bool moved = false;
  for (std::size_t place = 0; place < lane.posted.size();) {
    WorkState& work = *lane.posted[place];
    const bool failing = work.phase.load(std::memory_order_relaxed) == WorkState::Phase::failing;
    const Outcome outcome = work.request != nullptr && !failing ? work.request->poll() : Outcome::running;
    if (outcome == Outcome::running) {
      if (lane.traits.stream_ordered && !work.begun_at && work.request != nullptr && !failing) note_begin(work);
      ++place;
      continue;
    }
    moved = true;
    if (lane.traits.stream_ordered && !work.begun_at && outcome == Outcome::ok) note_begin(work);
    std::optional<Error> failure;
    if (outcome != Outcome::ok) work.suspect = suspect_of(work);
    if (outcome != Outcome::ok && outcome != Outcome::timeout) {
      failure = error_of(members_, work.operations().front(), outcome, work.request->failure());
    }
    if (outcome == Outcome::ok && lane.traits.stream_ordered) work.captured_in = work.request->captured_in();
    // a device may still be at work on what has failed, until it is aborted
    if (outcome == Outcome::ok || !lane.traits.stream_ordered) std::exchange(work.request, nullptr)->release();
    if (outcome == Outcome::ok) {
      remove(lane, place);
      if (work.comparison) conclude_comparison(work);
      finish(work, std::nullopt);
    } else {
      note_failure(work, std::move(failure));
      ++place;
    }
  }
  return moved;
}

/// On a device.
void GroupDriver::note_begin(WorkState& work) noexcept {
  if (!work.request->started()) return;
  work.begun_at = Deadline::Clock::now();
  for (const FlightGroup::Slot slot : work.flight) flight_->started(slot);
}

void GroupDriver::remove(Lane& lane, std::size_t place) noexcept {
  lane.collectives -= lane.posted[place]->is_transfer() ? 0 : 1;
  lane.posted.erase(lane.posted.begin() + static_cast<std::ptrdiff_t>(place));
}

void GroupDriver::conclude_comparison(WorkState& work) noexcept {
  const auto& [own, all] = *work.comparison;
  const auto same = [first = own.front()](std::int64_t other) { return other == first; };
  if (std::all_of(all.begin(), all.end(), same)) return;
  note_failure(*work.subject, mismatch(work.subject->operations().front(), {}, {}));
}

/// It stays where it is, and so do all others, until the watch has found out why.
void GroupDriver::note_failure(WorkState& work, std::optional<Error> failure) noexcept {
  work.phase.store(WorkState::Phase::failing, std::memory_order_release);
  WorkState& subject = work.subject != nullptr ? *work.subject : work;
  if (failure && &subject != &work) {
    failure = communication_failure(subject.operations().front(), failure->native(), failure->ranks());
  }
  subject.phase.store(WorkState::Phase::failing, std::memory_order_release);
  subject.error = std::move(failure);
  stuck_ = true;
  expect(Time{});
}

/// The group has failed or closes: nothing goes on, and everything ends with the verdict, but what has just succeeded.
bool GroupDriver::give_up() noexcept {
  if (!ended_ && (failed_ || unfinished_ > 0)) {
    for (Lane& lane : lanes_) poll(lane);
    for (Lane& lane : lanes_) lane.carrier.backend->abort();
    ended_ = true;
  }
  const std::optional<Error> verdict = failed_ ? watch_.verdict() : std::nullopt;
  if (verdict) record_failure(*flight_, *verdict);
  const auto error_of = [&](const WorkState& work) { return verdict ? *verdict : work.closed_error(); };
  bool moved = false;
  for (Lane& lane : lanes_) {
    for (std::size_t place = 0; place < lane.posted.size();) {
      WorkState& work = *lane.posted[place];
      Outcome outcome = Outcome::aborted;
      if (work.request != nullptr) outcome = work.request->poll();
      if (outcome == Outcome::running) {
        ++place;
        continue;
      }
      if (work.request != nullptr) std::exchange(work.request, nullptr)->release();
      remove(lane, place);
      finish(work, outcome == Outcome::ok ? std::nullopt : std::optional(error_of(work)));
      moved = true;
    }
    while (!lane.queue.empty()) {
      WorkState& work = lane.queue.pop();
      finish(work, error_of(work));
      moved = true;
    }
  }
  return moved;
}

void GroupDriver::finish(WorkState& work, std::optional<Error> error) noexcept {
  if (!work.comparison) {
    for (const Operation& operation : work.operations()) log_.finished(operation);
  }
  for (const FlightGroup::Slot slot : work.flight) flight_->finished(slot, !error);
  if (std::exchange(work.told, false)) log_.set_long_transfer(std::nullopt);
  work.finished_at = Deadline::Clock::now();
  work.error = std::move(error);
  work.phase.store(work.error ? WorkState::Phase::failed : WorkState::Phase::ok, std::memory_order_seq_cst);
  unfinished_.fetch_sub(1);
  finished_.push(work);
  wake_followers();
}

void GroupDriver::conclude(WorkList finished) noexcept {
  while (!finished.empty()) {
    WorkState& work = finished.pop();
    work.call_back();
    work.single.keep_alive.reset();
    for (Operation& operation : work.several) operation.keep_alive.reset();
    work.drop();
  }
}

}  // namespace ddp::collectives
