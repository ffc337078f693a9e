#include "collectives/group_submission.hpp"

#include <algorithm>

#include "collectives/group_engine.hpp"

namespace ddp::collectives {
namespace {

// How long before an operation's deadline an investigation starts: a quarter of its time, at most this.
constexpr std::chrono::milliseconds kLongestReserve{2000};
// While an operation waits, those that it waits for are probed: first after this, then less and less often.
constexpr std::chrono::milliseconds kFirstProbe{1000};

}  // namespace

/// Gives a slot back whose operation does not come to be.
class Submission::SlotGuard {
 public:
  SlotGuard(Submission& submission, WorkState& work) : submission_(submission), work_(&work) {}
  SlotGuard& operator=(SlotGuard&&) = delete;
  ~SlotGuard() {
    if (work_ == nullptr) return;
    work_->single.keep_alive.reset();
    submission_.recycle(*work_);
  }
  WorkState& keep() noexcept { return *std::exchange(work_, nullptr); }

 private:
  Submission& submission_;
  WorkState* work_;
};

Submission::Submission(GroupEngine& group, OperationLog& log, FlightGroup& flight, Lane* compare_on)
    : group_(group), log_(log), flight_(flight), compare_on_(compare_on) {}

Submission::~Submission() = default;

Work Submission::add(std::span<Operation> operations, Lane& lane, Deadline deadline, Time now) {
  WorkState& work = prepare(operations, lane, deadline, now);
  SlotGuard guard(*this, work);
  WorkState* const comparison =
      compare_on_ != nullptr && !work.is_transfer() ? &prepare_comparison(work, now) : nullptr;
  guard.keep();
  number(work, comparison);
  Work handle{work};  // first: once queued, others may finish it
  if (comparison != nullptr) queue(*comparison);
  queue(work);
  return handle;
}

WorkState& Submission::take_slot() {
  WorkState* spare = spare_.exchange(nullptr, std::memory_order_acquire);
  if (spare == nullptr) {
    const std::lock_guard lock(mutex_);
    if (unused_.empty()) unused_.push(slots_.emplace_back(group_));
    spare = &unused_.pop();
  }
  uses_.fetch_add(kUse, std::memory_order_relaxed);
  return *spare;
}

/// All that may take memory.
WorkState& Submission::prepare(std::span<Operation> operations, Lane& lane, Deadline deadline, Time now) {
  WorkState& work = take_slot();
  SlotGuard guard(*this, work);
  work.flight.reserve(operations.size());
  if (operations.size() == 1) {
    work.single = std::move(operations.front());
  } else {
    work.several.assign(std::make_move_iterator(operations.begin()), std::make_move_iterator(operations.end()));
  }
  work.issued_at = now;
  work.deadline = deadline;
  const Time end = deadline.when();
  work.investigate_at = end - std::clamp<Time::duration>((end - now) / 4, Time::duration::zero(), kLongestReserve);
  work.lane = &lane;
  work.next_probe = now + kFirstProbe;
  work.probe_interval = kFirstProbe;
  return guard.keep();
}

/// An operation of its own in front: whose number is the same on all ranks whatever they call, and never that of an
/// operation of the user.
WorkState& Submission::prepare_comparison(WorkState& subject, Time now) {
  WorkState& work = take_slot();
  SlotGuard guard(*this, work);
  work.comparison = std::make_unique<ArgumentComparison>();
  work.comparison->own.resize(1);
  work.comparison->all.resize(static_cast<std::size_t>(group_.members().size()));
  Operation& question = work.single;
  question.kind = OperationKind::all_gather;
  question.dtype = DType::int64;
  question.count = 1;
  question.input = work.comparison->own;
  question.output = work.comparison->all;
  work.deadline = subject.deadline;
  work.investigate_at = subject.investigate_at;
  work.lane = compare_on_;
  work.next_probe = now + kFirstProbe;
  work.probe_interval = kFirstProbe;
  work.subject = &subject;
  subject.gate = &work;
  return guard.keep();
}

/// Gives them their places, numbers their collectives and records them: who has a place must queue.
void Submission::number(WorkState& work, WorkState* comparison) noexcept {
  const std::span<Operation> operations =
      work.several.empty() ? std::span<Operation>{&work.single, 1} : std::span<Operation>{work.several};
  const std::uint64_t collectives = work.is_transfer() ? 0 : operations.size();
  const std::uint64_t works = comparison != nullptr ? 2 : 1;
  const std::uint64_t before = places_.fetch_add((works << kSequenceBits) + collectives, std::memory_order_relaxed);
  std::uint64_t sequence = before & kSequences;
  std::uint64_t place = before >> kSequenceBits;
  for (Operation& operation : operations) {
    if (collectives != 0) operation.sequence = ++sequence;
    log_.issued(operation);
    work.flight.push_back(flight_.record(operation));
  }
  if (comparison != nullptr) {
    std::uint64_t fingerprint = 0;
    for (const Operation& operation : operations) fingerprint = fingerprint * 31 + operation.fingerprint();
    comparison->comparison->own.front() = static_cast<std::int64_t>(fingerprint);
    comparison->single.sequence = operations.front().sequence | (std::uint64_t{1} << 63U);
    comparison->place = place++ % kPlaces;
    comparison->references.store(2, std::memory_order_release);  // one of its subject's
  }
  work.place = place % kPlaces;
  work.references.store(1, std::memory_order_release);  // until it is finished
}

void Submission::queue(WorkState& work) noexcept {
  unfinished_.fetch_add(1);
  work.next = inbox_.load(std::memory_order_relaxed);
  while (!inbox_.compare_exchange_weak(work.next, &work)) {
  }
}

void Submission::recycle(WorkState& work) noexcept {
  if (WorkState* const gate = std::exchange(work.gate, nullptr)) gate->drop();
  work.single.counts.clear();
  work.several.clear();
  work.flight.clear();
  work.comparison.reset();
  work.subject = nullptr;
  work.probes = 0;
  work.suspect = 0;
  work.begun_at.reset();
  work.captured_in.reset();
  work.error.reset();
  work.callbacks.store(nullptr, std::memory_order_relaxed);
  work.phase.store(WorkState::Phase::queued, std::memory_order_relaxed);
  WorkState* nothing = nullptr;
  if (!spare_.compare_exchange_strong(nothing, &work, std::memory_order_release, std::memory_order_relaxed)) {
    const std::lock_guard lock(mutex_);
    unused_.push(work);
  }
  std::shared_ptr<GroupEngine> last;  // the group may end with it, and without it as soon as the use is given back
  if (uses_.fetch_sub(kUse, std::memory_order_acq_rel) == (kUse | kClosed)) last = std::move(self_);
}

std::vector<Work> Submission::works() {
  std::vector<Work> works;
  const std::lock_guard lock(mutex_);
  for (WorkState& work : slots_) {
    if (!work.share_if_used()) continue;
    works.emplace_back(work);
    work.references.fetch_sub(1, std::memory_order_relaxed);  // not the last: the handle has one
  }
  return works;
}

void Submission::close(std::shared_ptr<GroupEngine> group) noexcept {
  self_ = std::move(group);  // first: who gives back the last use takes it away
  if (uses_.fetch_or(kClosed, std::memory_order_acq_rel) == 0) self_.reset();
}

WorkList Submission::take(const DrivingTurn& /*turn*/) noexcept {
  WorkList ready;
  if (inbox_.load(std::memory_order_relaxed) == nullptr) return ready;
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
    ready.push(early_.pop());
    next_place_ = (next_place_ + 1) % kPlaces;
  }
  return ready;
}

}  // namespace ddp::collectives
