#include <ddp/work.hpp>

#include <fmt/format.h>

#include <ddp/wait_watch.hpp>

#include "base/log.hpp"
#include "collectives/group_engine.hpp"

namespace ddp {
namespace collectives {
namespace {

// The group ends every operation by its deadline; after this grace time wait() throws.
constexpr auto kSlack = std::chrono::seconds(30);
// For WaitWatch.
constexpr auto kLook = std::chrono::milliseconds(50);

/// In the place of the callbacks of an operation that has called them.
WorkState::Callback called{.next = nullptr};

void call(WorkState& work, const std::function<void(const Work&)>& function) noexcept {
  try {
    function(Work{work});
  } catch (const std::exception& problem) {
    base::log(base::LogLevel::error, "the function to call at the end of {} failed: {}", work.description(),
              problem.what());
  } catch (...) {
    base::log(base::LogLevel::error, "the function to call at the end of {} failed", work.description());
  }
}

/// @param look null, or called now and then.
void wait_until(WorkState& work, Deadline limit, WaitWatch::Look look = nullptr) {
  if (!work.done()) {
    if (work.group.forked()) work.group.check_process("waiting for " + work.description());
    if (look == nullptr) work.group.wait(work, limit.when());
    while (look != nullptr && !work.done() && !limit.expired()) {
      work.group.wait(work, earlier(limit, Deadline::after(kLook)).when());
      if (!work.done()) look();
    }
  }
  if (!work.done()) throw work.still_running_error();
  if (work.error) throw Error{*work.error};
}

}  // namespace

std::string WorkState::description() const {
  if (!several.empty() && single_call() != nullptr) return single_call();
  const std::string first = operations().front().description();
  return several.empty() ? first : fmt::format("{} and {} more as one", first, several.size() - 1);
}

Error WorkState::closed_error() const {
  return Error{{.code = ErrorCode::aborted,
                .attempted = description(),
                .cause = "the process group was closed while it was under way",
                .hint = "wait for all operations before the group goes away"}};
}

Error WorkState::still_running_error() const {
  return Error{{.code = ErrorCode::timeout,
                .attempted = "waiting for " + description(),
                .cause = "it was still running when the caller stopped waiting"}};
}

void WorkState::drop() noexcept {
  if (references.fetch_sub(1, std::memory_order_acq_rel) == 1) group.recycle(*this);
}

void WorkState::on_finish(std::function<void(const Work&)> function) {
  auto callback = std::make_unique<Callback>(Callback{.function = std::move(function), .next = nullptr});
  callback->next = callbacks.load(std::memory_order_acquire);
  do {
    if (callback->next == &called) return call(*this, callback->function);
  } while (!callbacks.compare_exchange_weak(callback->next, callback.get(), std::memory_order_acq_rel));
  static_cast<void>(callback.release());
}

void WorkState::call_back() noexcept {
  Callback* newest = callbacks.exchange(&called, std::memory_order_acq_rel);
  Callback* first = nullptr;
  while (newest != nullptr) {
    Callback* const older = std::exchange(newest->next, first);
    first = std::exchange(newest, older);
  }
  while (first != nullptr) {
    const std::unique_ptr<Callback> owned(std::exchange(first, first->next));
    call(*this, owned->function);
  }
}

}  // namespace collectives

WaitWatch::Look& WaitWatch::current() noexcept {
  thread_local Look look = nullptr;
  return look;
}

Work::Work(collectives::WorkState& state) noexcept : state_(&state) { state_->share(); }
Work::Work(const Work& other) noexcept : state_(other.state_) {
  if (state_ != nullptr) state_->share();
}
Work::~Work() {
  if (state_ != nullptr) state_->drop();
}

void Work::wait() const {
  if (state_->phase.load(std::memory_order_acquire) == collectives::WorkState::Phase::ok) return;
  collectives::wait_until(*state_, Deadline{state_->deadline.when() + collectives::kSlack});
}

void Work::wait_watched() const {
  if (state_->phase.load(std::memory_order_acquire) == collectives::WorkState::Phase::ok) return;
  collectives::wait_until(*state_, Deadline{state_->deadline.when() + collectives::kSlack}, WaitWatch::current());
}

void Work::wait(Deadline deadline) const { collectives::wait_until(*state_, deadline); }

bool Work::done() const {
  if (state_->done()) return true;
  if (state_->group.forked()) return false;
  state_->group.lanes().attempt();
  return state_->done();
}

std::optional<Error> Work::error() const {
  if (!state_->done()) return std::nullopt;
  return state_->error;
}

std::optional<Deadline::Clock::time_point> Work::finished_at() const {
  if (!state_->done()) return std::nullopt;
  return state_->finished_at;
}

void Work::on_finish(std::function<void(const Work&)> callback) const { state_->on_finish(std::move(callback)); }

void Work::order(const Stream& stream) const {
  if (stream.device.type == DeviceType::cpu) return wait();
  if (state_->group.forked()) state_->group.check_process("ordering a stream after " + state_->description());
  state_->group.order(*state_, stream);
}

}  // namespace ddp
