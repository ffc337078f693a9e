// How a group ends: in peace, with a backend that does not let go of its operations, or with a call that does not come
// back.
#include <fmt/format.h>

#include "base/log.hpp"
#include "collectives/group_driver.hpp"

namespace ddp::collectives {
namespace {

// A closing group waits this long for a backend that goes on although it was aborted, and for one that closes.
constexpr std::chrono::seconds kLongestClose{5};
// And this long for a call of a backend, before it aborts the backends beside it.
constexpr std::chrono::seconds kLongestDrive{1};

/// Where leak checkers find it.
void keep_for_ever(std::shared_ptr<const void> what) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::shared_ptr<const void>>;
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(what));
}

}  // namespace

void GroupDriver::close() noexcept {
  if (forked()) {
    // its threads and connections are the parent's
    keep_for_ever(shared_from_this());
    return;
  }
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
        if (limit.expired()) return leave();
      }
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  end_rests();
  end_progress();
  watch_.stop();
  for (Lane& lane : lanes_) {
    if (!lane.carrier.backend) continue;
    lane.carrier.backend->close(Deadline::after(kLongestClose));
    lane.carrier.backend.reset();
  }
  members_.channel.reset();
  self_ = shared_from_this();  // first: who gives back the last use takes it away
  if (uses_.fetch_or(kClosed, std::memory_order_acq_rel) == 0) self_.reset();
}

void GroupDriver::end_rests() noexcept {
  no_rest_ = true;
  while (resting_ > 0) std::this_thread::sleep_for(std::chrono::microseconds(100));
}

/// A backend does not let go of its operations. It is kept for ever, and so is what they may still touch.
void GroupDriver::abandon() noexcept {
  base::log(base::LogLevel::error, "the backend of group '{}' did not end its operations {} s after it was aborted",
            members_.name, kLongestClose.count());
  keep_for_ever(shared_from_this());
  end_rests();
  for (Lane& lane : lanes_) {
    for (WorkState* work : lane.posted) {
      for (const Operation& operation : work->operations()) keep_for_ever(operation.keep_alive);
      work->share();
      finish(*work, work->closed_error());
    }
    lane.posted.clear();
    keep_for_ever(std::shared_ptr<Backend>(std::move(lane.carrier.backend)));
  }
}

/// A call of a backend does not come back. It keeps the right to drive, and all that it may touch is kept for ever.
void GroupDriver::leave() noexcept {
  base::log(base::LogLevel::error,
            "a call of the backend of group '{}' did not come back within {} s; the group is left to it", members_.name,
            kLongestClose.count());
  keep_for_ever(shared_from_this());
  end_progress();
  watch_.stop();
  members_.channel.reset();
}

}  // namespace ddp::collectives
