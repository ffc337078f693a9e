#include "collectives/group_lanes.hpp"

#include <algorithm>
#include <thread>

#include <fmt/format.h>

#include "collectives/failure_verdict.hpp"
#include "collectives/flight/flight_dump.hpp"
#include "collectives/group_backends.hpp"
#include "collectives/group_engine.hpp"
#include "collectives/wait_ladder.hpp"

namespace ddp::collectives {
namespace {

// Completed operations in a row before others get their turn.
constexpr int kLongestRun = 16;
// Suspects to look at among several operations: looking at all takes long, and one of these is enough.
constexpr std::size_t kMostSuspects = 16;

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

/// Converts a backend's report. What another rank found is not proof here: that rank tells all who ask more.
Error error_of(const GroupMembers& members, const Operation& operation, Outcome outcome, const Failure& failure) {
  if (outcome == Outcome::mismatch && failure.message) return unfit_message(members, *failure.message);
  std::vector<int> ranks = in_world(members, failure.ranks);
  if (outcome == Outcome::mismatch && !failure.elsewhere) return mismatch(operation, failure, std::move(ranks));
  return communication_failure(operation, text_of(failure), std::move(ranks));
}

void call_back(WorkList finished) noexcept {
  while (!finished.empty()) {
    WorkState& work = finished.pop();
    work.call_back();
    work.single.keep_alive.reset();
    for (Operation& operation : work.several) operation.keep_alive.reset();
    work.drop();
  }
}

}  // namespace

DrivingTurn::~DrivingTurn() {
  if (lanes_ != nullptr) lanes_->end_turn();
}

Lanes::Lanes(GroupEngine& group, std::vector<GroupBackend> backends)
    : group_(group),
      plugins_(!std::all_of(backends.begin(), backends.end(), [](const auto& one) { return is_built_in(one.name); })) {
  for (GroupBackend& backend : backends) lanes_.emplace_back(std::move(backend));
}

Lanes::~Lanes() = default;

Lane* Lanes::of(DeviceType device) noexcept {
  const auto serves = [device](const Lane& lane) {
    return device == DeviceType::cpu ? lane.traits.serves_cpu : lane.traits.serves_cuda;
  };
  // the first lane is the CPU's, even if it serves other devices, too
  if (device != DeviceType::cpu && lanes_.size() > 1 && serves(lanes_.back())) return &lanes_.back();
  const auto found = std::find_if(lanes_.begin(), lanes_.end(), serves);
  return found == lanes_.end() ? nullptr : &*found;
}

std::optional<DrivingTurn> Lanes::take_turn(Time limit) noexcept {
  WaitLadder ladder(false);
  while (driven_.exchange(true)) {
    const auto pause = ladder.pause();
    if (ladder.looked() && Deadline::Clock::now() >= limit) return std::nullopt;
    if (pause == std::chrono::microseconds::zero()) continue;
    std::this_thread::sleep_for(pause);
    ladder.rested();
  }
  return DrivingTurn(*this);
}

void Lanes::end_turn() noexcept {
  const WorkList finished = std::exchange(finished_, {});
  driven_.store(false);
  call_back(finished);
}

bool Lanes::attempt() noexcept {
  bool moved = false;
  while (auto turn = try_turn()) {
    moved = drive(*turn) || moved;
    turn.reset();
    // another thread may have added work while this one drove
    if (!group_.submission().pending()) break;
  }
  return moved;
}

void Lanes::rest(const Lane& lane, std::chrono::microseconds limit) noexcept {
  resting_.fetch_add(1);
  if (!no_rest_) lane.backend_->rest(limit);
  resting_.fetch_sub(1);
}

void Lanes::abort_backends() noexcept {
  resting_.fetch_add(1);  // keeps the backends from being removed
  if (!no_rest_) {
    for (Lane& lane : lanes_) lane.backend_->abort();
  }
  resting_.fetch_sub(1);
}

bool Lanes::drive(const DrivingTurn& turn) noexcept {
  drives_.store(drives_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  if (shut_) return false;
  admit(turn);
  if (group_.life().over()) return give_up(turn);
  bool moved = false;
  for (Lane& lane : lanes_) moved = advance(turn, lane) || moved;
  return moved;
}

void Lanes::admit(const DrivingTurn& turn) noexcept {
  for (WorkList ready = group_.submission().take(turn); !ready.empty();) {
    WorkState& work = ready.pop();
    work.lane->queue_.push(work);
  }
}

bool Lanes::advance(const DrivingTurn& turn, Lane& lane) noexcept {
  bool moved = false;
  for (int run = 0; run < kLongestRun; ++run) {
    moved = start(lane) || moved;
    if (!poll(turn, lane)) break;
    moved = true;
    if (lane.queue_.empty()) break;
  }
  return moved;
}

/// Collectives start in issue order and after earlier transfers; transfers start after earlier collectives.
bool Lanes::start(Lane& lane) noexcept {
  bool started = false;
  while (!stuck_.load(std::memory_order_relaxed) && !lane.queue_.empty()) {
    WorkState& head = *lane.queue_.front();
    if (head.gate != nullptr && !head.gate->done()) break;
    const bool transfers = static_cast<int>(lane.posted_.size()) > lane.collectives_;
    if (!lane.traits.stream_ordered &&
        (head.is_transfer() ? lane.collectives_ > 0
                            : transfers || lane.collectives_ >= lane.traits.concurrent_collectives)) {
      break;
    }
    lane.queue_.pop();
    post(lane, head);
    started = true;
  }
  return started;
}

void Lanes::post(Lane& lane, WorkState& work) noexcept {
  lane.posted_.push_back(&work);
  lane.collectives_ += work.is_transfer() ? 0 : 1;
  try {
    work.request = &lane.backend_->init(work.operations(), work.deadline);
  } catch (const std::exception& problem) {
    return note_failure(work, communication_failure(work.operations().front(), problem.what()));
  }
  if (!lane.traits.stream_ordered) {
    for (const FlightGroup::Slot slot : work.flight) group_.flight().started(slot);
  }
  work.request->post();
  work.phase.store(WorkState::Phase::posted, std::memory_order_release);
}

bool Lanes::poll(const DrivingTurn& turn, Lane& lane) noexcept {
  bool moved = false;
  for (std::size_t place = 0; place < lane.posted_.size();) {
    WorkState& work = *lane.posted_[place];
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
    if (outcome != Outcome::ok) work.suspect = suspect_of(turn, work);
    if (outcome != Outcome::ok && outcome != Outcome::timeout) {
      failure = error_of(group_.members(), work.operations().front(), outcome, work.request->failure());
    }
    if (outcome == Outcome::ok && lane.traits.stream_ordered) work.captured_in = work.request->captured_in();
    // a device may still be working on a failed operation until it is aborted
    if (outcome == Outcome::ok || !lane.traits.stream_ordered) std::exchange(work.request, nullptr)->release();
    if (outcome == Outcome::ok) {
      remove(lane, place);
      if (work.comparison) conclude_comparison(work);
      finish(turn, work, std::nullopt);
    } else {
      note_failure(work, std::move(failure));
      ++place;
    }
  }
  return moved;
}

/// Records the begin of an operation on a device.
void Lanes::note_begin(WorkState& work) noexcept {
  if (!work.request->started()) return;
  work.begun_at = Deadline::Clock::now();
  for (const FlightGroup::Slot slot : work.flight) group_.flight().started(slot);
}

void Lanes::remove(Lane& lane, std::size_t place) noexcept {
  lane.collectives_ -= lane.posted_[place]->is_transfer() ? 0 : 1;
  lane.posted_.erase(lane.posted_.begin() + static_cast<std::ptrdiff_t>(place));
}

void Lanes::conclude_comparison(WorkState& work) noexcept {
  const auto& [own, all] = *work.comparison;
  const auto same = [first = own.front()](std::int64_t other) { return other == first; };
  if (std::all_of(all.begin(), all.end(), same)) return;
  note_failure(*work.subject, mismatch(work.subject->operations().front(), {}, {}));
}

/// The operation stays in place, as do all others, until the watch has found the reason.
void Lanes::note_failure(WorkState& work, std::optional<Error> failure) noexcept {
  work.phase.store(WorkState::Phase::failing, std::memory_order_release);
  WorkState& subject = work.subject != nullptr ? *work.subject : work;
  if (failure && &subject != &work) {
    failure = communication_failure(subject.operations().front(), failure->native(), failure->ranks());
  }
  subject.phase.store(WorkState::Phase::failing, std::memory_order_release);
  subject.error = std::move(failure);
  stuck_ = true;
  group_.life().watch().expect(Time{});
}

/// The group has failed or is closing: nothing continues, and everything ends with the verdict except operations that
/// have just succeeded.
bool Lanes::give_up(const DrivingTurn& turn) noexcept {
  const bool failed = group_.life().failed();
  if (!aborted_ && (failed || group_.submission().unfinished() > 0)) {
    for (Lane& lane : lanes_) poll(turn, lane);
    for (Lane& lane : lanes_) lane.backend_->abort();
    aborted_ = true;
  }
  const std::optional<Error> verdict = failed ? group_.life().verdict() : std::nullopt;
  if (verdict) record_failure(group_.flight(), *verdict);
  const auto error_of = [&](const WorkState& work) { return verdict ? *verdict : work.closed_error(); };
  bool moved = false;
  for (Lane& lane : lanes_) {
    for (std::size_t place = 0; place < lane.posted_.size();) {
      WorkState& work = *lane.posted_[place];
      Outcome outcome = Outcome::aborted;
      if (work.request != nullptr) outcome = work.request->poll();
      if (outcome == Outcome::running) {
        ++place;
        continue;
      }
      if (work.request != nullptr) std::exchange(work.request, nullptr)->release();
      remove(lane, place);
      finish(turn, work, outcome == Outcome::ok ? std::nullopt : std::optional(error_of(work)));
      moved = true;
    }
    while (!lane.queue_.empty()) {
      WorkState& work = lane.queue_.pop();
      finish(turn, work, error_of(work));
      moved = true;
    }
  }
  return moved;
}

void Lanes::finish(const DrivingTurn& turn, WorkState& work, std::optional<Error> error) noexcept {
  if (!work.comparison) {
    for (const Operation& operation : work.operations()) group_.log().finished(operation);
  }
  for (const FlightGroup::Slot slot : work.flight) group_.flight().finished(slot, !error);
  if (std::exchange(work.told, false)) group_.log().set_long_transfer(std::nullopt);
  work.finished_at = Deadline::Clock::now();
  work.error = std::move(error);
  work.phase.store(work.error ? WorkState::Phase::failed : WorkState::Phase::ok, std::memory_order_seq_cst);
  group_.submission().finished(turn);
  finished_.push(work);
  group_.waiters().wake();
}

/// Operations that other ranks may have called differently, or not at all, take turns: of several sends and receives,
/// those that wait, receives first.
std::size_t Lanes::suspect_of(const DrivingTurn& /*turn*/, const WorkState& work) const {
  const auto operations = work.operations();
  std::vector<std::size_t> waiting;
  for (const bool sends_too : {false, true}) {
    if (work.request == nullptr || !work.is_transfer() || operations.size() == 1) break;
    for (std::size_t i = 0; i < operations.size() && waiting.size() < kMostSuspects; ++i) {
      if ((sends_too || operations[i].kind == OperationKind::recv) && work.request->waits(i)) waiting.push_back(i);
    }
    if (!waiting.empty()) return waiting[work.probes % waiting.size()];
  }
  return work.probes % operations.size();
}

std::vector<std::shared_ptr<const void>> Lanes::abandon(const DrivingTurn& turn) noexcept {
  std::vector<std::shared_ptr<const void>> owners;
  for (Lane& lane : lanes_) {
    for (WorkState* work : lane.posted_) {
      for (const Operation& operation : work->operations()) owners.push_back(operation.keep_alive);
      work->share();
      finish(turn, *work, work->closed_error());
    }
    lane.posted_.clear();
  }
  return owners;
}

bool Lanes::end_rests(Deadline limit) noexcept {
  no_rest_ = true;
  while (resting_ > 0) {
    if (limit.expired()) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

std::vector<std::unique_ptr<Backend>> Lanes::take_backends() {
  std::vector<std::unique_ptr<Backend>> backends;
  for (Lane& lane : lanes_) backends.push_back(std::move(lane.backend_));
  return backends;
}

}  // namespace ddp::collectives
