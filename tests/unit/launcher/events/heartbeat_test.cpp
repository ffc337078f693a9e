// Beats, and silence that counts only while this process runs.
#include "events/heartbeat.hpp"

namespace ddp::launcher {
namespace {

using Clock = Heartbeat::Clock;

TEST(HeartbeatTest, BeatsUntilItIsGone) {
  stream::EventLoop loop;
  int beats = 0;
  {
    const Heartbeat heartbeat{loop, 5ms, [&] { ++beats; }};
    const Deadline limit = Deadline::after(10s);
    while (beats < 3 && !limit.expired()) loop.run_once(limit);
    EXPECT_EQ(beats, 3);
  }
  loop.run_once(Deadline::after(20ms));
  EXPECT_EQ(beats, 3);
}

TEST(HeartbeatTest, SilenceIsTheTimeSinceSomethingCame) {
  stream::EventLoop loop;
  const Heartbeat heartbeat{loop, 1h, [] {}};
  const auto begin = Clock::now();
  std::this_thread::sleep_for(20ms);
  EXPECT_GE(heartbeat.silence(begin), 20ms);
  EXPECT_LT(heartbeat.silence(Clock::now() + 1s), 0ms);
}

TEST(HeartbeatTest, TimeInWhichThisProcessWasStoppedDoesNotCount) {
  stream::EventLoop loop;
  Heartbeat heartbeat{loop, 10ms, [] {}};
  const auto begin = Clock::now();
  std::this_thread::sleep_for(100ms);  // like SIGSTOP: the loop does not turn
  EXPECT_GE(heartbeat.silence(begin), 100ms);
  loop.run_once(Deadline::after(0ms));
  const auto silence = heartbeat.silence(begin);
  EXPECT_LE(silence, Clock::now() - begin - 80ms);
}

TEST(HeartbeatTest, KnowsHowLongThisProcessWasStopped) {
  stream::EventLoop loop;
  Heartbeat heartbeat{loop, 100ms, [] {}};
  std::this_thread::sleep_for(500ms);
  EXPECT_GE(heartbeat.own_pause(), 500ms);  // before the beat that tells of it
  const auto awake = Clock::now();
  loop.run_once(Deadline::after(0ms));
  const auto pause = heartbeat.own_pause();
  if (Clock::now() - awake < 200ms) {  // two beats; a busy machine may take longer
    EXPECT_GE(pause, 500ms);
  }
  bool runs = false;
  for (const Deadline limit = Deadline::after(10s); !runs && !limit.expired(); runs = heartbeat.own_pause() == 0ms)
    loop.run_once(limit);
  EXPECT_TRUE(runs);
}

TEST(HeartbeatTest, ABeatIsTakenOnce) {
  stream::EventLoop loop;
  int beats = 0;
  Heartbeat heartbeat{loop, 50ms, [&] { ++beats; }};
  EXPECT_FALSE(heartbeat.take_beat());
  std::this_thread::sleep_for(60ms);
  EXPECT_TRUE(heartbeat.take_beat());
  EXPECT_EQ(beats, 0);
}

}  // namespace
}  // namespace ddp::launcher
