// Deadlines: no overflow, rounding that never wakes early, and the earlier of two.
#include <ddp/deadline.hpp>

namespace ddp {
namespace {

using std::chrono::hours;
using std::chrono::microseconds;

TEST(Deadline, HugeDurationsAreCutInsteadOfOverflowing) {
  const auto now = Deadline::Clock::now();
  const auto check = [&](Deadline deadline) {
    EXPECT_FALSE(deadline.expired());
    EXPECT_GT(deadline.when(), now + hours(24 * 365 * 9));
    EXPECT_LT(deadline.when(), now + hours(24 * 365 * 11));
    EXPECT_GT(deadline.remaining(), hours(24 * 365 * 9));
  };
  check(Deadline::after(hours::max()));
  check(Deadline::after(seconds::max()));
  check(Deadline::after(milliseconds::max()));
  check(Deadline::after(std::chrono::nanoseconds::max()));
  check(Deadline::after(std::chrono::duration<double>(std::numeric_limits<double>::infinity())));
  check(Deadline::after(std::chrono::duration<double>(1e30)));
}

TEST(Deadline, OrdinaryDurationsAreKept) {
  const auto before = Deadline::Clock::now();
  const Deadline deadline = Deadline::after(milliseconds(1500));
  const auto after = Deadline::Clock::now();
  EXPECT_GE(deadline.when(), before + milliseconds(1500));
  EXPECT_LE(deadline.when(), after + milliseconds(1500));
  EXPECT_LE(deadline.remaining(), milliseconds(1500));
}

TEST(Deadline, NothingIsLeftOfOneThatHasPassed) {
  for (const Deadline deadline :
       {Deadline::after(seconds(0)), Deadline::after(seconds(-5)), Deadline{Deadline::Clock::now() - hours(1)}}) {
    EXPECT_TRUE(deadline.expired());
    EXPECT_EQ(deadline.remaining(), milliseconds(0));
    EXPECT_EQ(deadline.poll_timeout_ms(), 0);
  }
}

TEST(Deadline, PollTimeoutIsRoundedUp) {
  // rounding down would make a poll loop spin through the last millisecond
  EXPECT_EQ(Deadline{Deadline::Clock::now() + milliseconds(200)}.poll_timeout_ms(), 200);
  const int timeout = Deadline::after(microseconds(100'900)).poll_timeout_ms();
  EXPECT_EQ(timeout, 101);
  for (int i = 0; i < 20; ++i) {
    const Deadline deadline = Deadline::after(microseconds(1700));
    std::this_thread::sleep_for(milliseconds(deadline.poll_timeout_ms()));
    EXPECT_TRUE(deadline.expired());
  }
}

TEST(Deadline, PollTimeoutFitsIntoAnInt) { EXPECT_EQ(Deadline::after(hours(24 * 365)).poll_timeout_ms(), 86'400'000); }

TEST(Deadline, EarlierPicksTheEarlier) {
  const auto now = Deadline::Clock::now();
  const Deadline first{now + seconds(1)};
  const Deadline second{now + seconds(2)};
  EXPECT_EQ(earlier(first, second).when(), first.when());
  EXPECT_EQ(earlier(second, first).when(), first.when());
  EXPECT_EQ(earlier(first, first).when(), first.when());
  EXPECT_TRUE(first < second);
  EXPECT_FALSE(second < first);
  EXPECT_FALSE(first < first);
}

}  // namespace
}  // namespace ddp
