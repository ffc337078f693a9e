// Calls that do not come back: who is told of them, and who waits for them.
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <future>
#include <stdexcept>
#include <thread>

#include <gmock/gmock.h>

#include "collectives/nccl/blocking_calls.hpp"
#include "collectives/nccl/call_monitor.hpp"
#include "unit/collectives/nccl/device_group.hpp"

namespace ddp::collectives::testing {
namespace {

using nccl::BlockingCalls;
using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Not;

class BlockedCalls : public NcclTest {};

TEST_F(BlockedCalls, ACallIsToldOnceIfItIsSlow) {
  const auto slot = nccl::CallMonitor::watch("slow", "", milliseconds(80));
  ::testing::internal::CaptureStderr();
  const Deadline quick = Deadline::after(milliseconds(200));
  while (!quick.expired()) {
    const nccl::CallScope call(*slot, "in a quick call");
    std::this_thread::sleep_for(milliseconds(1));
  }
  {
    const nccl::CallScope call(*slot, "in a slow call");
    std::this_thread::sleep_for(milliseconds(1500));  // the monitor may have slept for a second when it came
  }
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(said, Not(HasSubstr("quick")));
  const auto first = said.find("group 'slow': a thread has been in a slow call");
  EXPECT_NE(first, std::string::npos) << said;
  EXPECT_EQ(said.find("slow call", first + 60), std::string::npos) << said;
}

TEST_F(BlockedCalls, BlockingCallsAreWaitedForWithCapturesLeftAlone) {
  std::atomic<bool> leave = false;
  std::atomic<bool> relaxed = false;
  ASSERT_TRUE(BlockingCalls::start([&] {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    cuda::driver().thread_exchange_stream_capture_mode(&mode);
    relaxed = mode == CU_STREAM_CAPTURE_MODE_RELAXED;
    while (!leave) std::this_thread::yield();
  }));
  auto settled =
      std::async(std::launch::async, [] { return BlockingCalls::settle(Deadline::after(milliseconds(50))); });
  EXPECT_EQ(settled.wait_for(std::chrono::seconds(20)), std::future_status::ready) << "it has a deadline";
  leave = true;
  EXPECT_FALSE(settled.get());
  EXPECT_TRUE(BlockingCalls::settle(soon()));
  EXPECT_TRUE(relaxed);
  ::testing::internal::CaptureStderr();
  ASSERT_TRUE(BlockingCalls::start([] { throw std::runtime_error("of a test"); }));
  EXPECT_TRUE(BlockingCalls::settle(soon()));
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("a call that may wait for a device: of a test"));
}

/// A driver that is unloaded while it is called crashes.
TEST_F(BlockedCalls, TheEndOfTheProcessWaitsForBlockingCalls) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const auto ends = [] {
    BlockingCalls::start([] {
      std::this_thread::sleep_for(milliseconds(300));
      static_cast<void>(!::write(STDERR_FILENO, "it is over", 10));
    });
    std::exit(0);
  };
  EXPECT_EXIT(ends(), ::testing::ExitedWithCode(0), "it is over");
}

}  // namespace
}  // namespace ddp::collectives::testing
