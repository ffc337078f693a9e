#include "collectives/group_driver.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/env_table.hpp"
#include "base/log.hpp"
#include "collectives/backend_loader.hpp"
#include "collectives/call_options.hpp"
#include "collectives/flight/flight_output.hpp"
#include "collectives/processor_share.hpp"
#include "collectives/progress_thread.hpp"

namespace ddp::collectives {
namespace {

using std::chrono::microseconds;

// How long before an operation's deadline an investigation starts: a quarter of its time, at most this.
constexpr std::chrono::milliseconds kLongestReserve{2000};
// While an operation waits, those that it waits for are looked after: first after this, then less and less often.
constexpr std::chrono::milliseconds kFirstProbe{1000};
// Who orders a stream after an operation waits this long for what has been aborted.
constexpr std::chrono::seconds kLongestOrder{5};

// Later deadlines are cut to this, so that grace times can be added to them.
constexpr std::chrono::hours kFarthest{24 * 365 * 10};

DeviceType device_of(const Operation& operation) {
  return (operation.output.numel() > 0 ? operation.output : operation.input).device().type;
}

std::shared_ptr<ProgressThread> make_own_progress(const std::vector<GroupBackend>& backends) {
  const auto may_hang = [](const GroupBackend& each) { return each.backend->traits().serves_cuda; };
  if (std::none_of(backends.begin(), backends.end(), may_hang)) return nullptr;
  return std::make_shared<ProgressThread>(ProgressThread::Duty::one);
}

/// Gives a slot back whose operation does not come to be.
class SlotGuard {
 public:
  SlotGuard(GroupDriver& driver, WorkState& work) : driver_(driver), work_(&work) {}
  SlotGuard(const SlotGuard&) = delete;
  SlotGuard& operator=(const SlotGuard&) = delete;
  ~SlotGuard() {
    if (work_ == nullptr) return;
    work_->single.keep_alive.reset();
    driver_.recycle(*work_);
  }
  WorkState& keep() noexcept { return *std::exchange(work_, nullptr); }

 private:
  GroupDriver& driver_;
  WorkState* work_;
};

}  // namespace

GroupDriver::GroupDriver(GroupMembers members, std::vector<GroupBackend> backends, std::chrono::milliseconds timeout)
    : members_(std::move(members)),
      timeout_(timeout),
      compare_arguments_(base::Environment::process().boolean("DDP_CHECK_COLLECTIVES") && members_.size() > 1),
      may_spin_(members_.on_own_node() == members_.size() && ProcessorShare::read().enough_for(members_.size())),
      plugins_(!std::all_of(backends.begin(), backends.end(), [](const auto& one) { return is_built_in(one.name); })),
      flight_(join_flight_recorder({.name = members_.name,
                                    .backend = backends.front().name,
                                    .rank = members_.rank,
                                    .global_ranks = members_.global_ranks,
                                    .timeout = timeout})),
      next_event_(Time::max().time_since_epoch().count()),
      own_progress_(make_own_progress(backends)),
      watch_(*this, members_, log_) {
  for (GroupBackend& backend : backends) {
    const BackendTraits traits = backend.backend->traits();
    lanes_.push_back({.carrier = std::move(backend), .traits = traits, .collectives = 0});
  }
}

GroupDriver::~GroupDriver() = default;

Lane* GroupDriver::lane_of(DeviceType device) noexcept {
  const auto serves = [device](const Lane& lane) {
    return device == DeviceType::cpu ? lane.traits.serves_cpu : lane.traits.serves_cuda;
  };
  // the first is the one for CPUs, even if it serves others, too
  if (device != DeviceType::cpu && lanes_.size() > 1 && serves(lanes_.back())) return &lanes_.back();
  const auto found = std::find_if(lanes_.begin(), lanes_.end(), serves);
  return found == lanes_.end() ? nullptr : &*found;
}

Lane& GroupDriver::lane_for(std::span<const Operation> operations) {
  if (operations.empty()) reject(operations, "there are none");
  const Operation& first = operations.front();
  for (const Operation& other : operations.subspan(1)) {
    if (other.is_transfer() != first.is_transfer()) {
      reject(operations, "sends and receives cannot start together with collectives");
    }
    if (device_of(other) != device_of(first)) reject(operations, "their tensors are on devices of different types");
  }
  Lane* lane = lane_of(device_of(first));
  if (lane == nullptr) reject(operations, "no backend of the group serves the tensor's device");
  return *lane;
}

Work GroupDriver::submit(std::span<Operation> operations, CallOptions options) {
  if (forked()) fork_guard_.check(operations.empty() ? "starting an operation" : operations.front().description());
  if (failed_.load(std::memory_order_acquire)) {
    if (const auto verdict = watch_.verdict()) throw *verdict;
  }
  Lane& lane = lane_for(operations);
  if (options.keep_alive) operations.front().keep_alive = std::move(options.keep_alive);
  apply(options, lane.traits, operations);
  const Time now = Deadline::Clock::now();
  const Deadline farthest{now + kFarthest};
  const Deadline deadline =
      earlier(options.deadline.value_or(Deadline{now + std::min<Time::duration>(timeout_, kFarthest)}), farthest);
  WorkState& issued = prepare(operations, lane, deadline, now);
  SlotGuard guard(*this, issued);
  WorkState* const comparison =
      compare_arguments_ && !issued.is_transfer() ? &prepare_comparison(issued, now) : nullptr;
  guard.keep();
  number(issued, comparison);
  Work work{issued};  // first: once queued, others may finish it
  if (comparison != nullptr) queue(*comparison);
  queue(issued);
  expect(std::min(issued.investigate_at, issued.next_probe));
  attempt();
  // in the order of the caller's own calls to its stream: another thread that drives may not have come to it yet
  if (lane.traits.stream_ordered) drive_until_posted(issued, deadline.when());
  if (options.in_stream && lane.traits.stream_ordered) order(issued, issued.operations().front().stream);
  if (!issued.done()) wake_progress();
  return work;
}

void GroupDriver::drive_until_posted(const WorkState& work, Time limit) {
  WaitLadder ladder(may_spin_);
  while (work.phase.load(std::memory_order_acquire) == WorkState::Phase::queued && !stuck_) {
    attempt();
    const auto rest_for = ladder.pause();
    if (ladder.looked() && Deadline::Clock::now() >= limit) return;
    if (rest_for == microseconds::zero()) continue;
    rest(*work.lane, rest_for);
    ladder.rested();
  }
}

WorkState& GroupDriver::take_slot() {
  WorkState* spare = spare_.exchange(nullptr, std::memory_order_acquire);
  if (spare == nullptr) {
    const std::lock_guard lock(mutex_);
    if (unused_.empty()) unused_.push(slots_.emplace_back(*this));
    spare = &unused_.pop();
  }
  uses_.fetch_add(kUse, std::memory_order_relaxed);
  return *spare;
}

/// All that may take memory.
WorkState& GroupDriver::prepare(std::span<Operation> operations, Lane& lane, Deadline deadline, Time now) {
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
WorkState& GroupDriver::prepare_comparison(WorkState& subject, Time now) {
  WorkState& work = take_slot();
  SlotGuard guard(*this, work);
  work.comparison = std::make_unique<ArgumentComparison>();
  work.comparison->own.resize(1);
  work.comparison->all.resize(static_cast<std::size_t>(members_.size()));
  Operation& question = work.single;
  question.kind = OperationKind::all_gather;
  question.dtype = DType::int64;
  question.count = 1;
  question.input = work.comparison->own;
  question.output = work.comparison->all;
  work.deadline = subject.deadline;
  work.investigate_at = subject.investigate_at;
  work.lane = lane_of(DeviceType::cpu);
  work.next_probe = now + kFirstProbe;
  work.probe_interval = kFirstProbe;
  work.subject = &subject;
  subject.gate = &work;
  return guard.keep();
}

/// Gives them their places among all that is submitted, in one step with the numbers of their collectives, and records
/// them: who has a place must queue.
void GroupDriver::number(WorkState& work, WorkState* comparison) noexcept {
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
    work.flight.push_back(flight_->record(operation));
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

void GroupDriver::queue(WorkState& work) noexcept {
  unfinished_.fetch_add(1);
  work.next = inbox_.load(std::memory_order_relaxed);
  while (!inbox_.compare_exchange_weak(work.next, &work)) {
  }
}

void GroupDriver::recycle(WorkState& work) noexcept {
  if (forked()) return;
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
  std::shared_ptr<GroupDriver> last;  // this object may end with it, and without it as soon as the use is given back
  if (uses_.fetch_sub(kUse, std::memory_order_acq_rel) == (kUse | kClosed)) last = std::move(self_);
}

void GroupDriver::expect(Time event) noexcept {
  const std::int64_t time = event.time_since_epoch().count();
  std::int64_t known = next_event_.load();
  while (time < known && !next_event_.compare_exchange_weak(known, time)) {
  }
}

WaitLadder GroupDriver::ladder_for(const Lane& lane) noexcept {
  // the peer that an inline backend waits for ends its rest, in others somebody must look
  const auto first_rest = lane.traits.completes_inline ? WaitLadder::kLongestRest : WaitLadder::kFirstRest;
  return WaitLadder(may_spin_, first_rest, &yield_budget_);
}

void GroupDriver::wait(const WorkState& work, Time limit) {
  WaitLadder ladder = ladder_for(*work.lane);
  bool leading = false;
  while (!work.done()) {
    if (!leading && !led_.load(std::memory_order_relaxed)) leading = !led_.exchange(true);
    if (leading && attempt()) ladder.reset();
    if (work.done()) break;
    auto rest_for = ladder.pause();
    if (ladder.looked()) {
      const Time now = Deadline::Clock::now();
      if (now >= limit) break;
      rest_for = std::min(rest_for, std::chrono::ceil<microseconds>(limit - now));
    }
    if (rest_for == microseconds::zero()) continue;
    // a failed operation waits for the inquiry, of which the backend knows nothing
    if (leading && !stuck_) {
      rest(*work.lane, rest_for);
    } else {
      follow(work, leading, rest_for);
    }
    ladder.rested();
  }
  if (!leading) return;
  led_ = false;
  wake_followers();
}

void GroupDriver::follow(const WorkState& work, bool leading, microseconds limit) {
  std::unique_lock lock(follow_mutex_);
  followers_.fetch_add(1);
  follow_.wait_for(lock, limit, [&] { return work.done() || (!leading && !led_); });
  followers_.fetch_sub(1);
}

void GroupDriver::wake_followers() noexcept {
  if (followers_ == 0) return;
  const std::lock_guard lock(follow_mutex_);
  follow_.notify_all();
}

void GroupDriver::rest(Lane& lane, microseconds limit) noexcept {
  resting_.fetch_add(1);
  if (!no_rest_) lane.carrier.backend->rest(limit);
  resting_.fetch_sub(1);
}

void GroupDriver::order(const WorkState& work, const Stream& stream) {
  if (!work.lane->traits.stream_ordered) {
    reject(work.operations(), "its backend does not run on streams; wait for it instead");
  }
  // not before it has been posted, for which earlier ones may have to end
  const Time latest = work.deadline.when() + kLongestOrder;
  WaitLadder ladder = ladder_for(*work.lane);
  while (!work.done() && !(ladder.looked() && Deadline::Clock::now() >= latest)) {
    attempt();
    {
      const Turn turn(*this, latest);
      if (!turn.taken()) break;
      if (work.request != nullptr && work.request->order(stream)) return;
      if (work.phase == WorkState::Phase::failing) break;
    }
    const auto limit = ladder.pause();
    if (limit == microseconds::zero()) continue;
    rest(*work.lane, limit);
    ladder.rested();
  }
  wait(work, latest);
  if (!work.done()) throw watch_.verdict().value_or(work.still_running_error());
  if (work.error) throw Error{*work.error};
  if (!work.captured_in) return;
  const Turn turn(*this, Deadline::Clock::now() + kLongestOrder);
  if (!turn.taken()) throw work.still_running_error();
  if (!gone_) work.lane->carrier.backend->order_captured(*work.captured_in, stream);
}

GroupDriver::Standing GroupDriver::tend() noexcept {
  const std::uint32_t drives = drives_.load(std::memory_order_relaxed);
  const bool untouched = drives == std::exchange(seen_drives_, drives);
  const bool to_be_ended = failed_ && !ended_;
  if (unfinished_ == 0 && !to_be_ended) {
    tending_ = false;
    return untouched ? Standing::idle : Standing::attended;
  }
  if (!to_be_ended && (led_ || (!untouched && !tending_))) {
    tending_ = false;
    return Standing::attended;
  }
  tending_ = true;
  const bool moved = attempt();
  const std::uint32_t after = drives_.load(std::memory_order_relaxed);
  if (!moved && after == drives) return Standing::attended;  // another thread is at it, maybe for long
  seen_drives_ = after;
  return moved ? Standing::moved : Standing::tended;
}

void GroupDriver::start_progress() {
  const auto self = shared_from_this();
  if (own_progress_) own_progress_->add(self);
  try {
    ProgressThread::instance().add(self);
  } catch (...) {
    if (own_progress_) own_progress_->remove(*this);
    throw;
  }
}

void GroupDriver::wake_progress() noexcept {
  if (own_progress_) own_progress_->used();
  ProgressThread::instance().used();
}

void GroupDriver::end_progress() noexcept {
  if (own_progress_) own_progress_->remove(*this);
  ProgressThread::instance().remove(*this);
}

GroupDriver::Standing GroupDriver::standing() const noexcept {
  return unfinished_ == 0 && (!failed_ || ended_) ? Standing::idle : Standing::attended;
}

}  // namespace ddp::collectives
