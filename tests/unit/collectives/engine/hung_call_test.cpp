// A call of a backend that does not come back, as of NCCL or a GPU's driver: the other groups of the process go on, and
// the group itself fails by its deadline.
#include <gmock/gmock.h>

#include <atomic>
#include <functional>
#include <thread>

#include "unit/collectives/engine/inline_backend.hpp"
#include "unit/collectives/fake_backend.hpp"
#include "unit/kvs/rank_threads.hpp"

namespace ddp {
namespace {

using ddp::test::BackendControl;
using ddp::test::soon;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::HasSubstr;

/// The test's end of a backend whose posts or polls hang.
struct HungCalls {
  std::atomic<bool> post_hangs{false};
  std::atomic<bool> poll_hangs{false};
  std::atomic<bool> succeed{false};
  std::atomic<bool> abort_hangs{false};
  std::atomic<bool> rest_hangs{false};
  bool abort_ends_them = true;
  std::atomic<bool> hanging{false};
  std::atomic<int> aborts{0};
  std::atomic<int> rests{0};
  std::atomic<std::thread::id> only{};  ///< the thread whose calls hang; default: any

  void hang(const std::atomic<bool>& hangs) {
    const std::thread::id wanted = only;
    if (wanted != std::thread::id{} && wanted != std::this_thread::get_id()) return;
    while (hangs && !(abort_ends_them && aborts > 0)) {
      hanging = true;
      std::this_thread::sleep_for(milliseconds(1));
    }
  }
  void hang_for_good(const std::atomic<bool>& hangs) const {
    while (hangs) std::this_thread::sleep_for(milliseconds(1));
  }
  void release() { post_hangs = poll_hangs = abort_hangs = rest_hangs = false; }
};

class HungBackend final : public Backend {
 public:
  explicit HungBackend(std::shared_ptr<HungCalls> calls) : calls_(std::move(calls)), request_(*calls_) {
    traits_.serves_cpu = true;
    traits_.serves_cuda = true;
    traits_.concurrent_collectives = 1000;
  }
  const BackendTraits& traits() const noexcept override { return traits_; }
  Bytes address() const override { return {}; }
  void connect(const std::vector<Bytes>& /*unused*/, Deadline /*immediate*/) override {}
  Request& init(std::span<const Operation> /*any*/, Deadline /*ignored*/) override { return request_; }
  void abort() noexcept override {
    ++calls_->aborts;
    calls_->hang_for_good(calls_->abort_hangs);
  }
  void close(Deadline /*immediate*/) noexcept override {}
  /// Short, as if what is waited for had come.
  void rest(std::chrono::microseconds /*longer*/) noexcept override {
    ++calls_->rests;
    calls_->hang_for_good(calls_->rest_hangs);
    std::this_thread::sleep_for(std::chrono::microseconds(500));
  }

 private:
  class HungRequest final : public Request {
   public:
    explicit HungRequest(HungCalls& calls) : calls_(calls) {}
    void post() noexcept override { calls_.hang(calls_.post_hangs); }
    Outcome poll() noexcept override {
      calls_.hang(calls_.poll_hangs);
      if (calls_.aborts > 0) return Outcome::aborted;
      return calls_.succeed ? Outcome::ok : Outcome::running;
    }
    Failure failure() const override { return {}; }
    void release() noexcept override {}

   private:
    HungCalls& calls_;
  };

  const std::shared_ptr<HungCalls> calls_;
  BackendTraits traits_;
  HungRequest request_;
};

bool becomes(const std::function<bool()>& holds) {
  const Deadline deadline = soon();
  while (!holds() && !deadline.expired()) std::this_thread::sleep_for(milliseconds(1));
  return holds();
}

ProcessGroup hung_group(const std::shared_ptr<HungCalls>& calls, milliseconds timeout) {
  return ddp::test::group_over(std::make_unique<HungBackend>(calls), 1, timeout);
}

/// Whether an operation of a group on the CPU that never ends is ended at its deadline.
bool another_group_times_out() {
  const auto control = std::make_shared<BackendControl>();
  control->hold();
  ProcessGroup group = ddp::test::group_over(std::make_unique<ddp::test::FakeBackend>(control), 2, seconds(2));
  const Work work = group.barrier();
  return becomes([&] { return work.error().has_value(); });
}

/// A call starts an operation in a thread that does not come back.
TEST(HungCall, OfACallerEndsAtTheDeadlineAndHoldsNoOtherGroup) {
  const auto calls = std::make_shared<HungCalls>();
  calls->post_hangs = true;
  calls->abort_ends_them = false;
  ProcessGroup group = hung_group(calls, milliseconds(400));
  std::optional<Work> work;
  std::thread caller([&] { work = group.barrier(); });
  EXPECT_TRUE(becomes([&] { return calls->aborts > 0; })) << "its deadline passes";
  EXPECT_TRUE(another_group_times_out());
  calls->release();
  caller.join();
  ASSERT_TRUE(work);
  EXPECT_TRUE(becomes([&] { return work->done(); }));
  ASSERT_TRUE(work->error());
  EXPECT_EQ(work->error()->code(), ErrorCode::timeout) << work->error()->what();
}

/// The group's own thread carries on an operation; then a call of another thread takes long to start one.
TEST(HungCall, OfACallerIsNotLookedAtWithoutPause) {
  const auto calls = std::make_shared<HungCalls>();
  ProcessGroup group = hung_group(calls, seconds(60));
  const Work first = group.barrier();
  ASSERT_TRUE(becomes([&] { return calls->rests > 0; }));
  std::thread caller([&] {
    calls->only = std::this_thread::get_id();
    calls->post_hangs = true;
    // until a call finds the group free, and starts its operation itself
    for (int i = 0; i < 500 && calls->post_hangs; ++i) {
      static_cast<void>(group.barrier());
      std::this_thread::sleep_for(milliseconds(1));
    }
  });
  EXPECT_TRUE(becomes([&] { return calls->hanging.load(); }));
  std::this_thread::sleep_for(milliseconds(20));  // it has noticed
  const int before = calls->rests;
  std::this_thread::sleep_for(milliseconds(200));
  EXPECT_LE(calls->rests - before, 20) << "rests that end at once, one after the other, take the processor from others";
  calls->succeed = true;
  calls->release();
  caller.join();
}

/// Nobody waits for the operation, and the thread that carries it on does not come back.
TEST(HungCall, OfTheGroupsOwnThreadEndsAtTheDeadlineAndHoldsNoOtherGroup) {
  const auto calls = std::make_shared<HungCalls>();
  ProcessGroup group = hung_group(calls, milliseconds(400));
  const Work work = group.barrier();
  calls->poll_hangs = true;
  ASSERT_TRUE(becomes([&] { return calls->hanging.load(); }));
  EXPECT_TRUE(another_group_times_out());
  EXPECT_TRUE(becomes([&] { return work.done(); })) << "the abort ends the call";
  ASSERT_TRUE(work.error());
  EXPECT_EQ(work.error()->code(), ErrorCode::timeout) << work.error()->what();
}

TEST(HungCall, ThatNeverEndsHoldsNotTheEndOfItsGroup) {
  const auto calls = std::make_shared<HungCalls>();
  calls->abort_ends_them = false;
  ::testing::internal::CaptureStderr();
  {
    ProcessGroup group = hung_group(calls, seconds(60));
    const Work work = group.barrier();
    calls->poll_hangs = true;
    ASSERT_TRUE(becomes([&] { return calls->hanging.load(); }));
  }
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("did not come back"));
  EXPECT_GT(calls->aborts, 0);
  EXPECT_TRUE(another_group_times_out());
  calls->release();
}

/// Of plugins: Backend::abort should never block, and Backend::rest not for long.
TEST(HungCall, OfAbortOrRestHoldsNotTheEndOfItsGroup) {
  const auto aborts = std::make_shared<HungCalls>();
  const auto rests = std::make_shared<HungCalls>();
  aborts->abort_hangs = true;
  rests->rest_hangs = true;
  ::testing::internal::CaptureStderr();
  std::thread closes_first([&] {
    ProcessGroup group = hung_group(aborts, seconds(60));
    static_cast<void>(group.barrier());
  });
  {
    ProcessGroup group = hung_group(rests, seconds(60));
    const Work work = group.barrier();
    ASSERT_TRUE(becomes([&] { return rests->rests > 0; }));
    rests->succeed = true;
    ASSERT_TRUE(becomes([&] { return work.done(); }));
  }
  closes_first.join();
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("did not come back"));
  EXPECT_GT(aborts->aborts, 0);
  aborts->release();
  rests->release();
}

/// A failed group whose abort does not come back either.
TEST(HungCall, OfAbortHoldsNoOtherGroup) {
  const auto calls = std::make_shared<HungCalls>();
  ProcessGroup group = hung_group(calls, milliseconds(400));
  static_cast<void>(group.barrier());
  calls->abort_ends_them = false;
  calls->abort_hangs = true;
  calls->poll_hangs = true;
  EXPECT_TRUE(becomes([&] { return calls->aborts > 0; }));
  EXPECT_TRUE(another_group_times_out());
  calls->release();
}

TEST(HungCall, HoldsWhoAllocatesUntilTheDeadline) {
  const auto calls = std::make_shared<HungCalls>();
  calls->post_hangs = true;
  calls->abort_ends_them = false;
  ProcessGroup group = hung_group(calls, seconds(60));
  std::thread caller([&] { static_cast<void>(group.barrier()); });
  EXPECT_TRUE(becomes([&] { return calls->hanging.load(); }));
  try {
    static_cast<void>(group.allocate(8, Deadline::after(milliseconds(100))));
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::timeout);
    EXPECT_THAT(error.what(), HasSubstr("has not come back"));
  }
  calls->release();
  caller.join();
}

}  // namespace
}  // namespace ddp
