#include "collectives/group_engine.hpp"

#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/env_table.hpp"
#include "collectives/flight/flight_dump.hpp"
#include "collectives/operation.hpp"

namespace ddp::collectives {
namespace {

using std::chrono::microseconds;

// Longest wait of a caller that orders a stream after an aborted operation.
constexpr std::chrono::seconds kLongestOrder{5};
// Later deadlines are cut to this, so that grace times can be added.
constexpr std::chrono::hours kFarthest{24 * 365 * 10};

DeviceType device_of(const Operation& operation) {
  return (operation.output.numel() > 0 ? operation.output : operation.input).device().type;
}

}  // namespace

GroupEngine::GroupEngine(GroupMembers members, std::vector<GroupBackend> backends, ConnectOptions connect,
                         std::chrono::milliseconds timeout)
    : members_(std::move(members)),
      connect_(std::move(connect)),
      timeout_(timeout),
      may_spin_(members_.on_own_node() == members_.size() && ProcessorShare::read().enough_for(members_.size())),
      flight_(join_flight_recorder({.name = members_.name,
                                    .backend = backends.front().name,
                                    .rank = members_.rank,
                                    .global_ranks = members_.global_ranks,
                                    .timeout = timeout})),
      lanes_(*this, std::move(backends)),
      submission_(*this, log_, *flight_,
                  base::Environment::process().boolean("DDP_CHECK_COLLECTIVES") && members_.size() > 1
                      ? lanes_.of(DeviceType::cpu)
                      : nullptr),
      life_(*this, members_, log_) {}

GroupEngine::~GroupEngine() = default;

std::shared_ptr<GroupEngine> GroupEngine::make(GroupMembers members, std::vector<GroupBackend> backends,
                                               ConnectOptions connect, std::chrono::milliseconds timeout) {
  const std::shared_ptr<GroupEngine> group(
      new GroupEngine(std::move(members), std::move(backends), std::move(connect), timeout));
  group->life().start();
  return {group.get(), [group](GroupEngine* /*the same*/) { group->life().close(); }};
}

std::vector<std::string> GroupEngine::backend_names() const {
  std::vector<std::string> names;
  for (const Lane& lane : lanes_.all()) names.push_back(lane.name);
  return names;
}

Lane& GroupEngine::lane_for(std::span<const Operation> operations) {
  if (operations.empty()) reject(operations, "there are none");
  const Operation& first = operations.front();
  for (const Operation& other : operations.subspan(1)) {
    if (other.is_transfer() != first.is_transfer()) {
      reject(operations, "sends and receives cannot start together with collectives");
    }
    if (device_of(other) != device_of(first)) reject(operations, "their tensors are on devices of different types");
  }
  Lane* lane = lanes_.of(device_of(first));
  if (lane == nullptr) reject(operations, "no backend of the group serves the tensor's device");
  return *lane;
}

Work GroupEngine::submit(std::span<Operation> operations, CallOptions options) {
  if (forked()) check_process(operations.empty() ? "starting an operation" : operations.front().description());
  if (life_.failed()) {
    if (const auto verdict = life_.verdict()) throw *verdict;
  }
  Lane& lane = lane_for(operations);
  if (options.keep_alive) operations.front().keep_alive = std::move(options.keep_alive);
  apply(options, lane.traits, operations);
  const Time now = Deadline::Clock::now();
  const Deadline farthest{now + kFarthest};
  const Deadline deadline =
      earlier(options.deadline.value_or(Deadline{now + std::min<Time::duration>(timeout_, kFarthest)}), farthest);
  Work handle = submission_.add(operations, lane, deadline, now);
  const WorkState& work = WorkState::of(handle);
  life_.watch().expect(std::min(work.investigate_at, work.next_probe));
  lanes_.attempt();
  // keeps the order of the caller's own calls to its stream: another driving thread may not have reached it yet
  if (lane.traits.stream_ordered) drive_until_posted(work, deadline.when());
  if (options.in_stream && lane.traits.stream_ordered) order(work, work.operations().front().stream);
  if (!work.done()) life_.used();
  return handle;
}

void GroupEngine::drive_until_posted(const WorkState& work, Time limit) {
  WaitLadder ladder(may_spin_);
  while (work.phase.load(std::memory_order_acquire) == WorkState::Phase::queued && !lanes_.stuck()) {
    lanes_.attempt();
    const auto rest_for = ladder.pause();
    if (ladder.looked() && Deadline::Clock::now() >= limit) return;
    if (rest_for == microseconds::zero()) continue;
    lanes_.rest(*work.lane, rest_for);
    ladder.rested();
  }
}

WaitLadder GroupEngine::ladder_for(const Lane& lane) noexcept {
  // an inline backend's peer ends the rest; with others, a thread must poll
  const auto first_rest = lane.traits.completes_inline ? WaitLadder::kLongestRest : WaitLadder::kFirstRest;
  return WaitLadder(may_spin_, first_rest, &yield_budget_);
}

void GroupEngine::wait(const WorkState& work, Time limit) {
  WaitLadder ladder = ladder_for(*work.lane);
  bool leading = false;
  while (!work.done()) {
    if (!leading) leading = waiters_.lead();
    if (leading && lanes_.attempt()) ladder.reset();
    if (work.done()) break;
    auto rest_for = ladder.pause();
    if (ladder.looked()) {
      const Time now = Deadline::Clock::now();
      if (now >= limit) break;
      rest_for = std::min(rest_for, std::chrono::ceil<microseconds>(limit - now));
    }
    if (rest_for == microseconds::zero()) continue;
    // a failed operation waits for the inquiry, which the backend does not see
    if (leading && !lanes_.stuck()) {
      lanes_.rest(*work.lane, rest_for);
    } else {
      waiters_.follow(leading, rest_for, [&work] { return work.done(); });
    }
    ladder.rested();
  }
  if (leading) waiters_.end_lead();
}

void GroupEngine::order(const WorkState& work, const Stream& stream) {
  if (!work.lane->traits.stream_ordered) {
    reject(work.operations(), "its backend does not run on streams; wait for it instead");
  }
  // only once it is posted, for which earlier operations may have to end
  const Time latest = work.deadline.when() + kLongestOrder;
  WaitLadder ladder = ladder_for(*work.lane);
  while (!work.done() && !(ladder.looked() && Deadline::Clock::now() >= latest)) {
    lanes_.attempt();
    {
      const auto turn = lanes_.take_turn(latest);
      if (!turn) break;
      if (work.request != nullptr && work.request->order(stream)) return;
      if (work.phase == WorkState::Phase::failing) break;
    }
    const auto limit = ladder.pause();
    if (limit == microseconds::zero()) continue;
    lanes_.rest(*work.lane, limit);
    ladder.rested();
  }
  wait(work, latest);
  if (!work.done()) throw life_.verdict().value_or(work.still_running_error());
  if (work.error) throw Error{*work.error};
  if (!work.captured_in) return;
  const auto turn = lanes_.take_turn(Deadline::Clock::now() + kLongestOrder);
  if (!turn) throw work.still_running_error();
  if (Backend* const backend = lanes_.backend(*turn, *work.lane)) backend->order_captured(*work.captured_in, stream);
}

GroupEngine::Activity GroupEngine::progress() noexcept {
  const std::uint32_t drives = lanes_.drives();
  const bool untouched = drives == std::exchange(seen_drives_, drives);
  const bool to_be_ended = life_.failed() && !lanes_.aborted();
  if (submission_.unfinished() == 0 && !to_be_ended) {
    carried_on_ = false;
    return untouched ? Activity::idle : Activity::driven;
  }
  if (!to_be_ended && (waiters_.led() || (!untouched && !carried_on_))) {
    carried_on_ = false;
    return Activity::driven;
  }
  carried_on_ = true;
  const bool moved = lanes_.attempt();
  const std::uint32_t after = lanes_.drives();
  if (!moved && after == drives) return Activity::driven;  // another thread is driving, perhaps for long
  seen_drives_ = after;
  return moved ? Activity::advanced : Activity::polled;
}

GroupEngine::Activity GroupEngine::activity() const noexcept {
  return submission_.unfinished() == 0 && (!life_.failed() || lanes_.aborted()) ? Activity::idle : Activity::driven;
}

/// Calls @p call(backend, Backend::Pause). Such a call waits for all ranks, some of which may first need progress in
/// the group's other operations: so it holds the right to drive only while it checks.
template <class Call>
auto GroupEngine::call_with_pauses(const std::string& attempted, const Lane& lane, Deadline deadline, Call&& call) {
  std::optional<DrivingTurn> turn;
  const auto take_turn = [&]() -> Backend& {
    lanes_.attempt();
    if (auto taken = lanes_.take_turn(deadline.when())) turn.emplace(*std::move(taken));
    if (!turn) {
      throw Error{{.code = ErrorCode::timeout,
                   .attempted = attempted,
                   .cause = "another call of the group's backend has not come back",
                   .hint = "the log names the call"}};
    }
    if (Backend* const backend = lanes_.backend(*turn, lane)) return *backend;
    throw Error{
        {.code = ErrorCode::aborted, .attempted = attempted, .cause = "the process group was closed meanwhile"}};
  };
  WaitLadder ladder(false);
  Backend& backend = take_turn();
  try {
    return call(backend, [&] {
      turn.reset();
      if (const auto rest_for = ladder.pause(); rest_for != microseconds::zero()) {
        std::this_thread::sleep_for(rest_for);
        ladder.rested();
      }
      take_turn();
    });
  } catch (const Error&) {
    if (const auto verdict = life_.verdict()) throw *verdict;  // this error is its consequence
    throw;
  }
}

/// The lane for CUDA tensors of a group that has not failed.
Lane& GroupEngine::device_lane(const std::string& attempted) {
  if (forked()) check_process(attempted);
  if (const auto verdict = life_.verdict()) throw *verdict;
  if (Lane* const lane = lanes_.of(DeviceType::cuda)) return *lane;
  throw Error{
      {.code = ErrorCode::unavailable, .attempted = attempted, .cause = "no backend of the group serves CUDA tensors"}};
}

std::shared_ptr<void> GroupEngine::allocate(std::size_t bytes, Deadline deadline) {
  const std::string attempted = fmt::format("allocating {} bytes for group '{}'", bytes, members_.name);
  const Lane& lane = device_lane(attempted);
  if (bytes == 0) {
    throw Error{{.code = ErrorCode::invalid_argument, .attempted = attempted, .cause = "the size is 0"}};
  }
  return call_with_pauses(attempted, lane, deadline, [&](Backend& backend, const Backend::Pause& pause) {
    return backend.allocate(bytes, deadline, pause);
  });
}

std::shared_ptr<TensorExecutor> GroupEngine::make_executor(bool converts, Deadline deadline) {
  const std::string attempted = fmt::format("preparing to move gradients on a device for group '{}'", members_.name);
  return call_with_pauses(
      attempted, device_lane(attempted), deadline,
      [&](Backend& backend, const Backend::Pause& pause) { return backend.make_executor(converts, deadline, pause); });
}

void GroupEngine::split(Backend* child, int rank, Deadline deadline) {
  const Lane* const lane = lanes_.of(DeviceType::cuda);
  if (lane == nullptr || !lane->traits.splits) return;
  call_with_pauses(fmt::format("splitting a group off group '{}'", members_.name), *lane, deadline,
                   [&](Backend& backend, const Backend::Pause& pause) { backend.split(child, rank, deadline, pause); });
}

namespace {

/// The number of forks between the process that loaded the library and this one.
std::atomic<unsigned> generation{0};

void count_forks_once() {
  static const int registered = ::pthread_atfork(nullptr, nullptr, [] { generation.fetch_add(1); });
  static_cast<void>(registered);
}

}  // namespace

ForkGuard::ForkGuard() noexcept {
  count_forks_once();
  generation_ = generation.load();
}

bool ForkGuard::forked() const noexcept { return generation.load(std::memory_order_relaxed) != generation_; }

void ForkGuard::check(std::string_view attempted) const {
  if (!forked()) return;
  throw Error{{.code = ErrorCode::unavailable,
               .attempted = std::string(attempted),
               .cause = "this process was forked from the one that made the process group",
               .hint = "only that process can use the group; start helper processes before World::init, or by exec"}};
}

}  // namespace ddp::collectives
