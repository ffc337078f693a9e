// How a group ends: by order, in peace, with a backend that does not let go of its operations, or with a call that does
// not come back.
#include <fmt/format.h>

#include "base/library_thread.hpp"
#include "base/log.hpp"
#include "collectives/group_driver.hpp"

namespace ddp::collectives {
namespace {

// A closing group waits this long for a backend that goes on although it was aborted, and for one that closes.
constexpr std::chrono::seconds kLongestClose{5};
// And this long for a call of a backend, before it aborts the backends beside it.
constexpr std::chrono::seconds kLongestDrive{1};
// For all that comes before backends are closed, where they are plugins.
constexpr std::chrono::seconds kLongestEnd = kLongestClose + 2 * kLongestDrive;

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
    } catch (const Error& error) {  // there can be no more threads
      base::log(base::LogLevel::debug, "closing a group: {}", error.what());
    }
  }
  return work();
}

}  // namespace

void GroupDriver::abort(std::string_view reason) noexcept {
  if (forked()) return;
  const int own = members_.global(members_.rank);
  try {
    watch_.end_group(Error{{.code = ErrorCode::aborted,
                            .attempted = fmt::format("using group '{}'", members_.name),
                            .cause = fmt::format("rank {} aborted it{}{}", own, reason.empty() ? "" : ": ", reason),
                            .ranks = {own},
                            .hint = "look at that rank; then make a new group"}});
  } catch (const std::exception& error) {  // no memory: the group's end is as good
    base::log(base::LogLevel::error, "aborting group '{}': {}", members_.name, error.what());
  }
  for (const Deadline limit = Deadline::after(kLongestClose); unfinished_ > 0 && !limit.expired();) {
    attempt();
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

void GroupDriver::close() noexcept {
  if (forked()) {
    // its threads and connections are the parent's
    keep_for_ever(shared_from_this());
    return;
  }
  if (!within(kLongestEnd, plugins_, [self = shared_from_this()] { return self->end_operations(); })) return leave();
  end_progress();
  watch_.stop();
  if (!abandoned_) close_backends();
  members_.channel.reset();
  self_ = shared_from_this();  // first: who gives back the last use takes it away
  if (uses_.fetch_or(kClosed, std::memory_order_acq_rel) == 0) self_.reset();
}

/// False where a call of a backend does not come back.
bool GroupDriver::end_operations() noexcept {
  attempt();  // what the others have finished, too
  if (unfinished_ > 0) {
    base::log(base::LogLevel::warning, "group '{}' is closed while operations are under way; they are aborted",
              members_.name);
    if (const auto first = first_unfinished()) watch_.tell_of_close(WorkState::of(*first));
  }
  closing_ = true;
  const Deadline limit = Deadline::after(kLongestClose);
  for (;;) {
    {
      const Turn turn(*this, Deadline::after(kLongestDrive).when());
      if (turn.taken()) {
        drive();
        gone_ = unfinished_ == 0 || limit.expired();
        if (gone_ && unfinished_ > 0) abandon();
        if (gone_) break;
      } else {
        if (unfinished_ > 0) abort_backends();
        if (limit.expired()) return false;
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return abandoned_ || end_rests(limit);
}

/// Whether no thread is in a call of a backend any more.
bool GroupDriver::end_rests(Deadline limit) noexcept {
  no_rest_ = true;
  while (resting_ > 0) {
    if (limit.expired()) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return true;
}

void GroupDriver::close_backends() noexcept {
  const auto backends = std::make_shared<std::vector<std::unique_ptr<Backend>>>();
  for (Lane& lane : lanes_) backends->push_back(std::move(lane.carrier.backend));
  const bool closed = within(2 * kLongestClose, plugins_, [backends] {
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

/// A backend does not let go of its operations. It is kept for ever, and so is what they may still touch.
void GroupDriver::abandon() noexcept {
  base::log(base::LogLevel::error, "the backend of group '{}' did not end its operations {} s after it was aborted",
            members_.name, kLongestClose.count());
  keep_for_ever(shared_from_this());
  abandoned_ = true;
  for (Lane& lane : lanes_) {
    for (WorkState* work : lane.posted) {
      for (const Operation& operation : work->operations()) keep_for_ever(operation.keep_alive);
      work->share();
      finish(*work, work->closed_error());
    }
    lane.posted.clear();
  }
}

/// A call of a backend does not come back. It keeps the right to drive, and all that it may touch is kept for ever.
void GroupDriver::leave() noexcept {
  base::log(base::LogLevel::error,
            "a call of the backend of group '{}' did not come back within some {} s; the group is left to it",
            members_.name, kLongestClose.count());
  keep_for_ever(shared_from_this());
  end_progress();
  watch_.stop();
  members_.channel.reset();
}

}  // namespace ddp::collectives
