// The operations of a group: order, overlapping transfers, deadlines that hold although the backend ignores them, and
// ends.
#include "collectives/group_engine.hpp"

#include "base/socket.hpp"
#include "unit/collectives/fake_backend.hpp"
#include "unit/kvs/rank_threads.hpp"

namespace ddp::collectives {
namespace {

using ddp::test::BackendControl;
using ddp::test::error_of;
using ddp::test::soon;
using ddp::test::thrown_by;
using Events = std::vector<std::string>;

/// A group whose other members never need to be asked.
struct GroupEngineTest : ::testing::Test {
  void start(milliseconds timeout = seconds(30)) {
    GroupMembers members{.name = "test",
                         .rank = 0,
                         .global_ranks = {0},
                         .endpoints = {{}},
                         .channel = nullptr,
                         .peer_timeout = seconds(30)};
    engine_ = GroupEngine::make(std::move(members), ddp::test::fake_backends(control_), ConnectOptions{}, timeout);
  }
  Work collective(std::optional<Deadline> deadline = {}) {
    Operation operation;
    operation.kind = OperationKind::all_reduce;
    return engine_->submit(std::move(operation), deadline);
  }
  Work transfer(OperationKind kind, std::uint32_t tag, std::optional<Deadline> deadline = {}) {
    Operation operation;
    operation.kind = kind;
    operation.tag = tag;
    operation.root = 0;
    return engine_->submit(std::move(operation), deadline);
  }

  std::shared_ptr<BackendControl> control_ = std::make_shared<BackendControl>();
  std::shared_ptr<GroupEngine> engine_;
};

TEST_F(GroupEngineTest, CollectivesRunInOrderOneAtATime) {
  start();
  std::vector<Work> works;
  for (int i = 0; i < 50; ++i) works.push_back(collective());
  for (const Work& work : works) EXPECT_FALSE(error_of([&] { work.wait(); }));
  Events expected;
  for (int i = 1; i <= 50; ++i) {
    expected.push_back("begin all_reduce " + std::to_string(i));
    expected.push_back("end all_reduce " + std::to_string(i));
  }
  EXPECT_EQ(control_->events(), expected);
}

/// "cpu:NAME,cuda:NAME": although the first would serve CUDA tensors, too.
TEST_F(GroupEngineTest, CudaTensorsGoToTheSecondOfTwoBackends) {
  const auto second = std::make_shared<BackendControl>();
  control_->traits.serves_cuda = true;
  second->traits.serves_cpu = false;
  second->traits.serves_cuda = true;
  std::vector<GroupBackend> backends = ddp::test::fake_backends(control_);
  backends.push_back({"second", std::make_unique<ddp::test::FakeBackend>(second)});
  GroupMembers members{.name = "test",
                       .rank = 0,
                       .global_ranks = {0},
                       .endpoints = {{}},
                       .channel = nullptr,
                       .peer_timeout = seconds(30)};
  engine_ = GroupEngine::make(std::move(members), std::move(backends), ConnectOptions{}, seconds(30));
  ASSERT_NE(engine_->lane_of(DeviceType::cuda), nullptr);
  EXPECT_EQ(engine_->lane_of(DeviceType::cuda)->name, "second");
  EXPECT_EQ(engine_->lane_of(DeviceType::cpu)->name, "fake");
  engine_.reset();
}

TEST_F(GroupEngineTest, WorkTellsWhetherAndWhenItFinished) {
  start();
  control_->hold();
  const Work work = collective();
  ASSERT_TRUE(control_->wait_for("begin all_reduce 1", soon()));
  EXPECT_FALSE(work.done());
  EXPECT_FALSE(work.error());
  EXPECT_FALSE(work.finished_at());
  const Error given_up = thrown_by([&] { work.wait(Deadline::after(milliseconds(50))); });
  EXPECT_EQ(given_up.code(), ErrorCode::timeout);
  EXPECT_FALSE(work.done()) << "the operation continues when the caller stops waiting";
  const auto before = Deadline::Clock::now();
  control_->release();
  EXPECT_FALSE(error_of([&] { work.wait(); }));
  EXPECT_TRUE(work.done());
  ASSERT_TRUE(work.finished_at());
  EXPECT_GE(*work.finished_at(), before);
  EXPECT_LE(*work.finished_at(), Deadline::Clock::now());
}

TEST_F(GroupEngineTest, TransfersOverlap) {
  start();
  control_->hold();
  std::vector<Work> works;
  for (std::uint32_t tag = 1; tag <= 3; ++tag) works.push_back(transfer(OperationKind::send, tag));
  // all are posted although none has ended
  EXPECT_TRUE(control_->wait_for("post send tag 3", soon()));
  EXPECT_EQ(control_->events(), (Events{"post send tag 1", "post send tag 2", "post send tag 3"}));
  control_->release();
  for (const Work& work : works) EXPECT_FALSE(error_of([&] { work.wait(); }));
}

TEST_F(GroupEngineTest, TransfersStayBehindAnEarlierCollective) {
  start();
  control_->hold();
  const Work first = collective();
  const Work second = transfer(OperationKind::recv, 1);
  ASSERT_TRUE(control_->wait_for("begin all_reduce 1", soon()));
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_FALSE(control_->saw("post recv tag 1"));
  control_->release();
  EXPECT_FALSE(error_of([&] { second.wait(); }));
  EXPECT_EQ(control_->events(),
            (Events{"begin all_reduce 1", "end all_reduce 1", "post recv tag 1", "end recv tag 1"}));
}

TEST_F(GroupEngineTest, ALaterCollectiveWaitsForTransfers) {
  start();
  control_->hold();
  const Work send = transfer(OperationKind::send, 1);
  const Work receive = transfer(OperationKind::recv, 2);
  const Work later = collective();
  ASSERT_TRUE(control_->wait_for("post recv tag 2", soon()));
  control_->release("send tag 1");
  EXPECT_FALSE(error_of([&] { send.wait(); }));
  std::this_thread::sleep_for(milliseconds(50));
  EXPECT_FALSE(control_->saw("begin all_reduce 1")) << "one transfer is still under way";
  control_->release();
  EXPECT_FALSE(error_of([&] { later.wait(); }));
  EXPECT_TRUE(control_->saw("end recv tag 2"));
}

TEST_F(GroupEngineTest, ADeadlineHoldsAlthoughTheBackendNeverReturns) {
  start();
  control_->hold();
  const auto begin = Deadline::Clock::now();
  const Work work = collective(Deadline::after(milliseconds(800)));
  const Work behind = collective();
  const auto error = error_of([&] { work.wait(); });
  const auto took = Deadline::Clock::now() - begin;
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::timeout);
  EXPECT_THAT(error->attempted(), HasSubstr("all_reduce #1"));
  EXPECT_GE(took, milliseconds(500)) << "a quarter of the time is for finding out why";
  EXPECT_LT(took, seconds(10));
  EXPECT_GE(control_->aborts(), 1);

  const auto follower = error_of([&] { behind.wait(); });
  ASSERT_TRUE(follower) << "what is queued behind it cannot run any more";
  EXPECT_STREQ(follower->what(), error->what());
  EXPECT_FALSE(control_->saw("begin all_reduce 2"));

  const auto later = error_of([&] { static_cast<void>(collective()); });
  ASSERT_TRUE(later) << "a dead group takes nothing";
  EXPECT_STREQ(later->what(), error->what());
}

TEST_F(GroupEngineTest, TheGroupsTimeoutIsTheDefaultDeadline) {
  start(milliseconds(500));
  control_->hold();
  const auto begin = Deadline::Clock::now();
  const Error error = thrown_by([&] { collective().wait(); });
  EXPECT_EQ(error.code(), ErrorCode::timeout);
  EXPECT_LT(Deadline::Clock::now() - begin, seconds(10));
}

TEST_F(GroupEngineTest, ADeadlineHoldsForTransfersToo) {
  start();
  control_->hold();
  const auto begin = Deadline::Clock::now();
  const Work work = transfer(OperationKind::recv, 4, Deadline::after(milliseconds(600)));
  const Error error = thrown_by([&] { work.wait(); });
  EXPECT_EQ(error.code(), ErrorCode::timeout);
  EXPECT_THAT(error.what(), HasSubstr("nothing for it before the deadline"));
  EXPECT_LT(Deadline::Clock::now() - begin, seconds(10));
}

TEST_F(GroupEngineTest, ABrokenConnectionFailsTheGroupAtOnce) {
  start();
  control_->fail("all_reduce 2");
  EXPECT_FALSE(error_of([&] { collective().wait(); }));
  const auto begin = Deadline::Clock::now();
  const Error error = thrown_by([&] { collective().wait(); });
  EXPECT_THAT(error.what(), HasSubstr("the connection broke"));
  EXPECT_THAT(error.what(), HasSubstr("all_reduce #2"));
  EXPECT_LT(Deadline::Clock::now() - begin, seconds(10));
  const Error later = thrown_by([&] { static_cast<void>(collective()); });
  EXPECT_STREQ(later.what(), error.what());
}

TEST_F(GroupEngineTest, AnOperationThatTheBackendRefusesFails) {
  start();
  control_->refuse("send tag 1");
  const Error error = thrown_by([&] { transfer(OperationKind::send, 1).wait(); });
  EXPECT_THAT(error.what(), HasSubstr("the backend has no room"));
}

TEST_F(GroupEngineTest, ClosingAnIdleGroupAbortsNothing) {
  start();
  EXPECT_FALSE(error_of([&] { collective().wait(); }));
  EXPECT_FALSE(error_of([&] { transfer(OperationKind::send, 1).wait(); }));
  engine_.reset();
  EXPECT_EQ(control_->aborts(), 0);
}

TEST_F(GroupEngineTest, ClosingWithWorkUnderWayAbortsIt) {
  start();
  control_->hold();
  const std::vector<Work> works{collective(), transfer(OperationKind::send, 1), collective()};
  ASSERT_TRUE(control_->wait_for("begin all_reduce 1", soon()));
  const auto begin = Deadline::Clock::now();
  engine_.reset();
  EXPECT_LT(Deadline::Clock::now() - begin, seconds(10));
  for (const Work& work : works) {
    const Error error = thrown_by([&] { work.wait(soon(2000)); });
    EXPECT_EQ(error.code(), ErrorCode::aborted) << error.what();
  }
}

/// From a thread unrelated to the operations, one of which another thread waits for.
TEST_F(GroupEngineTest, AbortEndsWhatRunsAndWhatComes) {
  start();
  control_->hold();
  const std::vector<Work> works{collective(), transfer(OperationKind::send, 1), collective()};
  ASSERT_TRUE(control_->wait_for("begin all_reduce 1", soon()));
  std::thread waits([&] { EXPECT_TRUE(error_of([&] { works.front().wait(); })); });
  const auto begin = Deadline::Clock::now();
  const Error why{
      {.code = ErrorCode::peer_lost, .attempted = "watching rank 7", .cause = "its host is gone", .ranks = {7}}};
  ProcessGroup(engine_).abort(why);
  EXPECT_LT(Deadline::Clock::now() - begin, seconds(10));
  for (const Work& work : works) {
    ASSERT_TRUE(work.done());
    ASSERT_TRUE(work.error());
    EXPECT_EQ(work.error()->code(), ErrorCode::peer_lost);
    EXPECT_STREQ(work.error()->what(), why.what());
    EXPECT_EQ(work.error()->ranks(), std::vector<int>{7});
  }
  waits.join();
  const Error later = thrown_by([&] { static_cast<void>(collective()); });
  EXPECT_STREQ(later.what(), why.what());
  ProcessGroup(engine_).abort("once more");
  EXPECT_STREQ(error_of([&] { static_cast<void>(collective()); })->what(), why.what());
}

TEST_F(GroupEngineTest, AbortWithWordsNamesTheRank) {
  start();
  ProcessGroup(engine_).abort("the monitor says so");
  const Error error = thrown_by([&] { static_cast<void>(collective()); });
  EXPECT_EQ(error.code(), ErrorCode::aborted);
  EXPECT_EQ(error.ranks(), std::vector<int>{0});
  EXPECT_THAT(error.what(), HasSubstr("rank 0 aborted it: the monitor says so"));
}

TEST_F(GroupEngineTest, ClosingWithPostedTransfersAbortsThem) {
  start();
  control_->hold();
  const std::vector<Work> works{transfer(OperationKind::send, 1), transfer(OperationKind::recv, 2), collective()};
  ASSERT_TRUE(control_->wait_for("post recv tag 2", soon()));
  engine_.reset();
  for (const Work& work : works) {
    const Error error = thrown_by([&] { work.wait(soon(2000)); });
    EXPECT_EQ(error.code(), ErrorCode::aborted) << error.what();
  }
}

/// A group of two whose other member is silent: its port accepts connections and never answers.
class GroupWithASilentMember : public GroupEngineTest {
 protected:
  explicit GroupWithASilentMember(seconds peer_timeout = seconds(3)) {
    GroupMembers members{
        .name = "pair",
        .rank = 0,
        .global_ranks = {0, 1},
        .endpoints = {{}, {.rank = 1, .address = "127.0.0.1", .port = base::local_port(silent_.get())}},
        .channel = std::make_shared<world::PeerChannel>("127.0.0.1"),
        .peer_timeout = peer_timeout};
    engine_ = GroupEngine::make(std::move(members), ddp::test::fake_backends(control_), ConnectOptions{}, seconds(120));
    control_->hold();
  }
  base::UniqueFd silent_ = base::listen_tcp("127.0.0.1");
};

TEST_F(GroupWithASilentMember, ItIsNamedLongBeforeTheDeadline) {
  for (const Work& work : {collective(), transfer(OperationKind::recv, 1)}) {
    const Error error = thrown_by([&] { work.wait(Deadline::after(seconds(40))); });
    EXPECT_EQ(error.code(), ErrorCode::peer_lost) << error.what();
    EXPECT_EQ(error.ranks(), std::vector<int>{1});
  }
}

/// The member is asked after half a second, and given up only after longer than the test takes on any busy machine.
class GroupThatWaitsForASilentMember : public GroupWithASilentMember {
 protected:
  GroupThatWaitsForASilentMember() : GroupWithASilentMember(seconds(60)) {}
};

TEST_F(GroupThatWaitsForASilentMember, ASlowOperationMayStillSucceed) {
  const Work work = collective();
  ASSERT_TRUE(control_->wait_for("begin all_reduce 1", soon()));
  std::this_thread::sleep_for(milliseconds(2200));  // by now it is being asked
  control_->release();
  EXPECT_FALSE(error_of([&] { work.wait(); }));
}

// While a member is being asked, which takes seconds, an operation with a short deadline begins.
TEST_F(GroupThatWaitsForASilentMember, DeadlinesOfOthersHoldMeanwhile) {
  const Work slow = transfer(OperationKind::recv, 1);
  std::this_thread::sleep_for(milliseconds(1300));
  const auto begin = Deadline::Clock::now();
  const auto error =
      error_of([&] { collective(Deadline::after(milliseconds(600))).wait(Deadline::after(seconds(30))); });
  EXPECT_LT(Deadline::Clock::now() - begin, seconds(20));
  ASSERT_TRUE(error);
  EXPECT_EQ(error->ranks(), std::vector<int>{1});
}

TEST_F(GroupThatWaitsForASilentMember, ClosingDoesNotWaitForIt) {
  const Work work = collective();
  std::this_thread::sleep_for(milliseconds(1300));
  const auto begin = Deadline::Clock::now();
  engine_.reset();
  EXPECT_LT(Deadline::Clock::now() - begin, seconds(20));
  EXPECT_EQ(work.error()->code(), ErrorCode::aborted);
}

TEST_F(GroupThatWaitsForASilentMember, ClosingDoesNotWaitForAFailuresCause) {
  const Work work = collective();
  ASSERT_TRUE(control_->wait_for("begin all_reduce 1", soon()));
  control_->fail("all_reduce 1");
  std::this_thread::sleep_for(milliseconds(300));
  const auto begin = Deadline::Clock::now();
  engine_.reset();
  EXPECT_LT(Deadline::Clock::now() - begin, seconds(20));
  EXPECT_EQ(work.error()->code(), ErrorCode::aborted);
}

TEST_F(GroupEngineTest, ManyThreadsMaySubmit) {
  start();
  ddp::test::run_ranks(4, [&](int) {
    for (int i = 0; i < 100; ++i) collective().wait();
  });
  EXPECT_EQ(control_->events().size(), 800U);
  EXPECT_TRUE(control_->saw("end all_reduce 400"));
}

TEST_F(GroupEngineTest, MemoryIsKeptAliveUntilTheEnd) {
  start();
  control_->hold();
  auto memory = std::make_shared<int>(1);
  Operation operation;
  operation.kind = OperationKind::barrier;
  operation.keep_alive = memory;
  const Work work = engine_->submit(std::move(operation), {});
  EXPECT_GT(memory.use_count(), 1);
  control_->release();
  work.wait();
  for (int i = 0; i < 200 && memory.use_count() > 1; ++i) std::this_thread::sleep_for(milliseconds(10));
  EXPECT_EQ(memory.use_count(), 1);
}

}  // namespace
}  // namespace ddp::collectives
