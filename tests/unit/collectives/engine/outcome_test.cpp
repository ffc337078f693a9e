// How ends reported by backends become errors, and how a group uses backends for several device types.
#include <ddp/error.hpp>
#include <ddp/process_group.hpp>

#include "kvs/memory_store.hpp"
#include "unit/collectives/engine/inline_backend.hpp"
#include "unit/collectives/fake_backend.hpp"
#include "unit/kvs/rank_threads.hpp"

namespace ddp {
namespace {

using ddp::test::BackendControl;
using ddp::test::error_of;
using ddp::test::FakeBackend;
using ddp::test::soon;
using ddp::test::thrown_by;

struct OutcomeTest : testing::Test {
  OutcomeTest() { make(); }
  /// Group ranks 0 and 1 are world ranks 4 and 9.
  void make() {
    auto members = ddp::test::members_of(2);
    members.global_ranks = {4, 9};
    std::vector<collectives::GroupBackend> backends;
    backends.push_back({"fake", std::make_unique<FakeBackend>(control_)});
    group_.emplace(collectives::GroupEngine::make(std::move(members), std::move(backends),
                                                  collectives::ConnectOptions{}, seconds(60)));
  }
  Error error_of_barrier() {
    auto error = error_of([&] { group_->barrier().wait(); });
    return error.value_or(Error{{.code = ErrorCode::conflict, .cause = "none"}});
  }

  std::shared_ptr<BackendControl> control_ = std::make_shared<BackendControl>();
  std::optional<ProcessGroup> group_;
};

TEST_F(OutcomeTest, FailedPeersAreNamedByWorldRank) {
  control_->fail("barrier 1", Outcome::peers_failed,
                 {.ranks = {1}, .cause = "rank 1 hung up", .native = "ECONNRESET (104)"});
  const Error error = error_of_barrier();
  EXPECT_EQ(error.code(), ErrorCode::peer_lost) << "it has no address, so it is gone when it is asked";
  EXPECT_THAT(error.ranks(), ElementsAre(9));
  EXPECT_THAT(error.native(), HasSubstr("rank 1 hung up: ECONNRESET (104)"));
}

TEST_F(OutcomeTest, AMismatchIsAProof) {
  control_->fail("barrier 1", Outcome::mismatch, {.ranks = {1}, .cause = "rank 1 called all_reduce"});
  const Error error = error_of_barrier();
  EXPECT_EQ(error.code(), ErrorCode::mismatch);
  EXPECT_THAT(error.what(), HasSubstr("rank 1 called all_reduce"));
  EXPECT_THAT(error.ranks(), ElementsAre(9));
}

TEST_F(OutcomeTest, WhatAliveRanksDoNotExplainIsTheNetworks) {
  ProcessGroup alone = ddp::test::group_over(std::make_unique<FakeBackend>(control_), 1);
  control_->fail("barrier 1", Outcome::peers_failed, {.ranks = {0}, .cause = "no route"});
  const Error error = thrown_by([&] { alone.barrier().wait(); });
  EXPECT_EQ(error.code(), ErrorCode::system);
  EXPECT_THAT(error.ranks(), ElementsAre(0)) << "whom the backend suspects";
}

TEST_F(OutcomeTest, ATimeOutIsLookedIntoAsADeadline) {
  ProcessGroup alone = ddp::test::group_over(std::make_unique<FakeBackend>(control_), 1);
  control_->fail("barrier 1", Outcome::timeout);
  const Error error = thrown_by([&] { alone.barrier(Deadline::after(milliseconds(300))).wait(); });
  EXPECT_EQ(error.code(), ErrorCode::timeout);
}

TEST_F(OutcomeTest, AfterAFailureNothingElseStarts) {
  control_->hold();
  std::vector<float> values(4);
  const Work first = group_->send(values, 1, 1);
  const Work second = group_->send(values, 1, 2);
  control_->fail("send tag 1");
  EXPECT_TRUE(error_of([&] { first.wait(); }));
  EXPECT_TRUE(error_of([&] { second.wait(); })) << "aborted with the rest";
  EXPECT_EQ(control_->aborts(), 1);
  EXPECT_TRUE(error_of([&] { static_cast<void>(group_->send(values, 1, 3)); }));
  EXPECT_FALSE(control_->saw("post send tag 3"));
}

TEST_F(OutcomeTest, AFailureEndsNothingThatIsComplete) {
  for (const Outcome outcome : {Outcome::peers_failed, Outcome::mismatch}) {
    control_ = std::make_shared<BackendControl>();
    control_->hold();
    make();
    std::vector<float> values(4);
    const Work first = group_->send(values, 1, 1);
    const Work second = group_->send(values, 1, 2);
    ASSERT_TRUE(control_->wait_for("post send tag 2", soon()));
    control_->release("send tag 2");
    control_->fail("send tag 1", outcome);
    EXPECT_TRUE(error_of([&] { first.wait(); }));
    EXPECT_FALSE(error_of([&] { second.wait(); }));
  }
}

TEST_F(OutcomeTest, ABackendThatGoesOnAfterItsAbortIsLeftBehind) {
  control_->ignores_abort = true;
  control_->hold();
  auto memory = std::make_shared<std::vector<float>>(4);
  const std::weak_ptr<std::vector<float>> seen = memory;
  const TensorView view = *memory;
  const Work work = group_->all_reduce(view, ReduceOp::sum, {Deadline::after(milliseconds(400)), std::move(memory)});
  const Error given_up = thrown_by([&] { work.wait(Deadline::after(milliseconds(1500))); });
  EXPECT_FALSE(work.done()) << "it may still use its tensors";
  EXPECT_EQ(control_->aborts(), 1);
  group_.reset();
  ASSERT_TRUE(work.error());
  EXPECT_EQ(work.error()->code(), ErrorCode::aborted);
  EXPECT_FALSE(control_->saw("destroyed"));
  EXPECT_FALSE(seen.expired());
}

/// DDP_CHECK_COLLECTIVES, read when the group is made.
class ComparisonTest : public OutcomeTest {
 protected:
  ComparisonTest() {
    ::setenv("DDP_CHECK_COLLECTIVES", "1", 1);
    make();
    ::unsetenv("DDP_CHECK_COLLECTIVES");
  }
  /// The other rank's first operation.
  void other_calls(bool the_same) {
    control_->effect = [the_same](const Operation& operation) {
      if (operation.kind != OperationKind::all_gather || operation.dtype != DType::int64) return;
      auto* all = static_cast<std::int64_t*>(operation.output.data());
      all[0] = *static_cast<std::int64_t*>(operation.input.data());
      all[1] = the_same ? all[0] : all[0] + 1;
    };
  }
};

TEST_F(ComparisonTest, RunsInFrontOfEachCollective) {
  other_calls(true);
  std::vector<float> values(4);
  group_->send(values, 1).wait();
  group_->barrier().wait();
  const Work first = group_->all_reduce(values);
  const Work second = group_->all_reduce(values);
  second.wait();
  EXPECT_TRUE(first.done());
  std::vector<std::string> begins;
  for (const std::string& event : control_->events()) {
    if (event.starts_with("begin ")) begins.push_back(event.substr(6, event.rfind(' ') - 6));
  }
  EXPECT_THAT(begins, ElementsAre("all_gather", "barrier", "all_gather", "all_reduce", "all_gather", "all_reduce"));
}

TEST_F(ComparisonTest, ADifferenceIsAMismatchAndTheOperationDoesNotStart) {
  other_calls(false);
  const Error error = error_of_barrier();
  EXPECT_EQ(error.code(), ErrorCode::mismatch);
  EXPECT_THAT(error.what(), HasSubstr("barrier #1"));
  EXPECT_FALSE(control_->saw("begin barrier 1"));
}

TEST(Lanes, EachDeviceTypeHasItsBackend) {
  const auto cpu = std::make_shared<BackendControl>();
  const auto cuda = std::make_shared<BackendControl>();
  cuda->traits.serves_cpu = false;
  cuda->traits.serves_cuda = true;
  std::vector<collectives::GroupBackend> backends;
  backends.push_back({"for_cpu", std::make_unique<FakeBackend>(cpu)});
  backends.push_back({"for_cuda", std::make_unique<FakeBackend>(cuda)});
  ProcessGroup group{collectives::GroupEngine::make(ddp::test::members_of(2), std::move(backends),
                                                    collectives::ConnectOptions{}, seconds(60))};
  EXPECT_EQ(group.backend(), "for_cpu");
  std::vector<float> values(4);
  const TensorView on_gpu{values.data(), DType::float32, {4}, {.type = DeviceType::cuda, .index = 0}};
  cpu->hold();
  const Work held = group.all_reduce(values);
  group.all_reduce(on_gpu).wait();
  EXPECT_FALSE(held.done()) << "devices have no order among each other";
  EXPECT_TRUE(cuda->saw("end all_reduce 2"));
  cpu->release();
  held.wait();
  EXPECT_FALSE(cpu->saw("begin all_reduce 2"));
}

}  // namespace

// A backend's call that does not return, as of NCCL or a GPU's driver: other groups of the process continue, and the
// group itself fails at its deadline.

namespace {

using ddp::test::BackendControl;
using ddp::test::soon;

/// Controls a backend whose posts or polls hang.
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
  /// Returns early, as if the awaited event had come.
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

/// Whether an endless operation of a CPU group ends at its deadline.
bool another_group_times_out() {
  const auto control = std::make_shared<BackendControl>();
  control->hold();
  ProcessGroup group = ddp::test::group_over(std::make_unique<ddp::test::FakeBackend>(control), 2, seconds(2));
  const Work work = group.barrier();
  return becomes([&] { return work.error().has_value(); });
}

/// A call starts an operation in a thread that does not return.
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

/// The group's own thread drives an operation; then another thread's call takes long to start one.
TEST(HungCall, OfACallerIsNotLookedAtWithoutPause) {
  const auto calls = std::make_shared<HungCalls>();
  ProcessGroup group = hung_group(calls, seconds(60));
  const Work first = group.barrier();
  ASSERT_TRUE(becomes([&] { return calls->rests > 0; }));
  std::thread caller([&] {
    calls->only = std::this_thread::get_id();
    calls->post_hangs = true;
    // until a call finds the group free and starts its operation itself
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

/// No thread waits for the operation, and the thread that drives it does not return.
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

/// For plugins: Backend::abort should never block, and Backend::rest only briefly.
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

/// A failed group whose abort does not return either.
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
  const Error error = thrown_by([&] { static_cast<void>(group.allocate(8, Deadline::after(milliseconds(100)))); });
  EXPECT_EQ(error.code(), ErrorCode::timeout);
  EXPECT_THAT(error.what(), HasSubstr("has not come back"));
  calls->release();
  caller.join();
}

}  // namespace

// A forked child must not touch its parent's groups, but may have its own.

namespace {

using ddp::test::error_of;
using ddp::test::thrown_by;

/// Runs @p child in a forked process; its return value is the exit status.
int status_of(const std::function<int()>& child) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::alarm(30);
    ::_exit(child());
  }
  int status = -1;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status;
}

bool says_forked(const std::optional<Error>& error) {
  return error && error->code() == ErrorCode::unavailable &&
         std::string(error->what()).find("was forked") != std::string::npos;
}

TEST(Fork, AGroupSaysThatItIsNotTheChilds) {
  const auto control = std::make_shared<ddp::test::BackendControl>();
  std::optional<ProcessGroup> group = ddp::test::group_over(std::make_unique<ddp::test::FakeBackend>(control));
  control->hold();
  std::optional<Work> open = group->barrier();
  const int status = status_of([&] {
    if (!says_forked(error_of([&] { static_cast<void>(group->barrier()); }))) return 1;
    if (!says_forked(error_of([&] { open->wait(); }))) return 2;
    if (open->done() || open->error()) return 3;
    const std::vector<int> all{0, 1};
    if (!says_forked(error_of([&] { group->new_group(all); }))) return 4;
    open.reset();
    group.reset();
    return control->saw("close") || control->saw("destroyed") || control->aborts() > 0 ? 5 : 0;
  });
  EXPECT_EQ(status, 0);
  control->release();
  EXPECT_FALSE(error_of([&] { open->wait(); })) << "the parent's goes on";
  EXPECT_FALSE(error_of([&] { group->barrier().wait(); }));
}

#ifndef DDP_THREAD_SANITIZER  // which forbids threads after a fork
TEST(Fork, AChildMayHaveAGroupOfItsOwn) {
  ProcessGroup parents = ddp::test::inline_group(10);
  parents.barrier().wait();
  const int status = status_of([] {
    const auto view = std::make_shared<ddp::test::InlineBackend::View>();
    ProcessGroup group = ddp::test::inline_group(10, 1, view);
    group.barrier().wait();
    static_cast<void>(group.barrier());
    const Deadline deadline = ddp::test::soon();
    while (view->ended < 2 && !deadline.expired()) ::usleep(1000);
    return view->ended == 2 ? 0 : 1;
  });
  EXPECT_EQ(status, 0);
  parents.barrier().wait();
}
#endif

}  // namespace

}  // namespace ddp

namespace ddp::collectives {

// Groups over a program's own store, as torch.distributed's; the ranks are threads.

namespace {

constexpr int kStoreRanks = 3;

std::unique_ptr<KeyValueStore> store_of(const std::shared_ptr<kvs::MemoryHub>& hub, int rank) {
  return std::make_unique<kvs::MemoryStore>(hub, rank);
}

StoreGroupOptions options_of(const char* name, std::vector<int> ranks, std::chrono::milliseconds timeout) {
  return {.name = name, .global_ranks = std::move(ranks), .timeout = timeout, .backend = "host"};
}

TEST(StoreGroup, RanksKeepTheirNumbersInTheJob) {
  const auto hub = std::make_shared<kvs::MemoryHub>(kStoreRanks);
  std::vector<std::future<int>> sums;
  for (int rank = 0; rank < kStoreRanks; ++rank) {
    sums.push_back(std::async(std::launch::async, [hub, rank] {
      ProcessGroup group =
          make_process_group(store_of(hub, rank), options_of("guests", {4, 9, 7}, std::chrono::seconds(60)));
      EXPECT_EQ(group.name(), "guests");
      EXPECT_EQ(group.rank(), rank);
      EXPECT_THAT(group.global_ranks(), ElementsAre(4, 9, 7));
      std::vector<std::int32_t> value{rank + 1};
      group.all_reduce(TensorView{value.data(), DType::int32, {1}}).wait();
      return static_cast<int>(value[0]);
    }));
  }
  for (auto& sum : sums) EXPECT_EQ(sum.get(), 6);
}

TEST(StoreGroup, TellsWhoStaysAway) {
  const auto hub = std::make_shared<kvs::MemoryHub>(2);
  try {
    make_process_group(store_of(hub, 0), options_of("alone", {}, std::chrono::milliseconds(100)));
    FAIL() << "a group without its second rank";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::timeout);
    EXPECT_THAT(error.ranks(), ElementsAre(1));
  }
}

TEST(StoreGroup, NumbersForOtherRanksAreRefused) {
  const auto hub = std::make_shared<kvs::MemoryHub>(1);
  EXPECT_THROW(make_process_group(store_of(hub, 0), options_of("short", {0, 1}, std::chrono::seconds(60))), Error);
}

}  // namespace

}  // namespace ddp::collectives
