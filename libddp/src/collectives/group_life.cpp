#include "collectives/group_life.hpp"

#include <algorithm>
#include <mutex>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "base/library_thread.hpp"
#include "base/log.hpp"
#include "collectives/group_engine.hpp"
#include "collectives/progress_thread.hpp"

namespace ddp::collectives {
namespace {

// A closing group waits this long for a backend that continues although it was aborted, and for one that closes.
constexpr std::chrono::seconds kLongestClose{5};
// And this long for a call of a backend, before it aborts the backends beside it.
constexpr std::chrono::seconds kLongestDrive{1};
// For all that comes before backends are closed, where they are plugins.
constexpr std::chrono::seconds kLongestEnd = kLongestClose + 2 * kLongestDrive;
// A failed group is aborted within microseconds by the thread that drives it. If nobody has by then, a call does not
// come back.
constexpr std::chrono::seconds kLongestFailing{1};

/// Where leak checkers find it.
void keep_for_ever(std::shared_ptr<const void> what) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::shared_ptr<const void>>;
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(what));
}

/// Does what calls backends, on a thread of its own where one is a plugin's: then whatever hangs there does not hold
/// the caller for longer than @p limit. False if it does.
template <class Work>
bool within(std::chrono::seconds limit, bool may_hang, Work work) {
  if (may_hang) {
    try {
      return base::abandonable_call(work, Deadline::after(limit)).value_or(false);
    } catch (const Error& error) {  // no more threads can be started
      base::log(base::LogLevel::debug, "closing a group: {}", error.what());
    }
  }
  return work();
}

std::shared_ptr<ProgressThread> make_own_progress(const std::vector<Lane>& lanes) {
  const auto may_hang = [](const Lane& lane) { return lane.traits.serves_cuda; };
  if (std::none_of(lanes.begin(), lanes.end(), may_hang)) return nullptr;
  return std::make_shared<ProgressThread>(ProgressThread::Duty::one);
}

}  // namespace

Life::Life(GroupEngine& group, GroupMembers& members, const OperationLog& log)
    : group_(group), members_(members), own_progress_(make_own_progress(group.lanes().all())), watch_(group, log) {}

Life::~Life() = default;

void Life::start() {
  const auto group = group_.shared_from_this();
  if (own_progress_) own_progress_->add(group);
  try {
    ProgressThread::instance().add(group);
  } catch (...) {
    if (own_progress_) own_progress_->remove(group_);
    throw;
  }
}

void Life::used() noexcept {
  if (own_progress_) own_progress_->used();
  ProgressThread::instance().used();
}

void Life::end_progress() noexcept {
  if (own_progress_) own_progress_->remove(group_);
  ProgressThread::instance().remove(group_);
}

void Life::fail() noexcept {
  failed_ = true;
  if (own_progress_) own_progress_->look_now();
  ProgressThread::instance().look_now();
}

void Life::abort(const Error& error) noexcept {
  watch_.end_group(error);
  for (const Deadline limit = Deadline::after(kLongestClose);
       group_.submission().unfinished() > 0 && !limit.expired();) {
    group_.lanes().attempt();
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

void Life::look(Time now) {
  watch_.look(now);
  abort_held_turn(now);
}

/// A call of a backend that does not come back keeps the right to drive, and the group must fail by its deadline all
/// the same. For NCCL, the abort of the communicator ends such a call.
void Life::abort_held_turn(Time now) noexcept {
  if (!failed_ || group_.lanes().aborted() || closing_) return held_since_.reset();
  if (!held_since_) held_since_ = now;
  if (now - *held_since_ < kLongestFailing) return;
  held_since_ = now;
  if (aborting_.exchange(true)) return;  // that has not come back either
  const auto abort = [group = group_.shared_from_this()] {
    group->lanes().abort_backends();
    group->life().aborting_ = false;
  };
  if (!group_.lanes().plugins()) return abort();
  try {  // not here, where it would hold up all groups if it hangs
    base::start_thread(abort).detach();
  } catch (const Error&) {
    abort();
  }
}

void Life::close() noexcept {
  const auto self = group_.shared_from_this();
  if (group_.forked()) return keep_for_ever(self);  // its threads and connections are the parent's
  if (!within(kLongestEnd, group_.lanes().plugins(), [self] { return self->life().end_operations(); })) return leave();
  end_progress();
  watch_.stop();
  if (!abandoned_) close_backends();
  members_.channel.reset();
  group_.submission().close(self);
}

/// False where a call of a backend does not come back.
bool Life::end_operations() noexcept {
  Submission& submission = group_.submission();
  Lanes& lanes = group_.lanes();
  lanes.attempt();  // what the others have finished, too
  if (submission.unfinished() > 0) {
    base::log(base::LogLevel::warning, "group '{}' is closed while operations are under way; they are aborted",
              members_.name);
    watch_.report_close();
  }
  closing_ = true;
  const Deadline limit = Deadline::after(kLongestClose);
  for (bool ended = false; !ended;) {
    if (const auto turn = lanes.take_turn(Deadline::after(kLongestDrive).when())) {
      lanes.drive(*turn);
      ended = submission.unfinished() == 0 || limit.expired();
      if (ended && submission.unfinished() > 0) {
        base::log(base::LogLevel::error,
                  "the backend of group '{}' did not end its operations {} s after it was aborted", members_.name,
                  kLongestClose.count());
        // kept for ever, and so is what it may still touch
        keep_for_ever(group_.shared_from_this());
        for (auto& owner : lanes.abandon(*turn)) keep_for_ever(std::move(owner));
        abandoned_ = true;
      }
      if (ended) lanes.shut(*turn);
    } else {
      if (submission.unfinished() > 0) lanes.abort_backends();
      if (limit.expired()) return false;
    }
    if (!ended) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return abandoned_ || lanes.end_rests(limit);
}

void Life::close_backends() noexcept {
  const auto backends = std::make_shared<std::vector<std::unique_ptr<Backend>>>(group_.lanes().take_backends());
  const bool closed = within(2 * kLongestClose, group_.lanes().plugins(), [backends] {
    const Deadline limit = Deadline::after(kLongestClose);
    for (std::unique_ptr<Backend>& backend : *backends) {
      backend->close(limit);
      backend.reset();
    }
    return true;
  });
  if (closed) return;
  base::log(base::LogLevel::error, "a backend of group '{}' did not close within {} s; it is left to itself",
            members_.name, 2 * kLongestClose.count());
}

/// A call of a backend does not come back. It keeps the right to drive, and all that it may touch is kept for ever.
void Life::leave() noexcept {
  base::log(base::LogLevel::error,
            "a call of the backend of group '{}' did not come back within some {} s; the group is left to it",
            members_.name, kLongestClose.count());
  keep_for_ever(group_.shared_from_this());
  end_progress();
  watch_.stop();
  members_.channel.reset();
}

}  // namespace ddp::collectives
