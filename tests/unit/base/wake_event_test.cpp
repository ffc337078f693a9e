// A descriptor that stays readable until it is cleared, however often it was rung.
#include "base/wake_event.hpp"

#include <poll.h>

#include <thread>

#include <gtest/gtest.h>

namespace ddp::base {
namespace {

bool readable(const WakeEvent& event, int timeout_ms = 0) {
  pollfd entry{.fd = event.fd(), .events = POLLIN, .revents = 0};
  return ::poll(&entry, 1, timeout_ms) == 1;
}

TEST(WakeEvent, IsReadableFromRingToClear) {
  const WakeEvent event;
  EXPECT_FALSE(readable(event));
  event.ring();
  event.ring();
  EXPECT_TRUE(readable(event));
  EXPECT_TRUE(readable(event));
  event.clear();
  EXPECT_FALSE(readable(event));
  event.clear();  // does not block
}

TEST(WakeEvent, WakesAnotherThread) {
  const WakeEvent event;
  std::thread ringing([&] { event.ring(); });
  EXPECT_TRUE(readable(event, 60'000));
  ringing.join();
}

}  // namespace
}  // namespace ddp::base
