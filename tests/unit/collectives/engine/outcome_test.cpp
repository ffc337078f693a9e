// How the ends that backends report become errors, and what a group does with backends for several device types.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "unit/collectives/engine/inline_backend.hpp"
#include "unit/collectives/fake_backend.hpp"
#include "unit/kvs/rank_threads.hpp"

namespace ddp {
namespace {

using ddp::test::BackendControl;
using ddp::test::error_of;
using ddp::test::FakeBackend;
using ddp::test::soon;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;

class OutcomeTest : public testing::Test {
 protected:
  OutcomeTest() { make(); }
  /// Group ranks 0 and 1 are world ranks 4 and 9.
  void make() {
    auto members = ddp::test::members_of(2);
    members.global_ranks = {4, 9};
    std::vector<collectives::GroupBackend> backends;
    backends.push_back({"fake", std::make_unique<FakeBackend>(control_)});
    group_.emplace(std::make_shared<collectives::GroupEngine>(std::move(members), std::move(backends),
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
  const auto error = error_of([&] { alone.barrier().wait(); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::system);
  EXPECT_THAT(error->ranks(), ElementsAre(0)) << "whom the backend suspects";
}

TEST_F(OutcomeTest, ATimeOutIsLookedIntoAsADeadline) {
  ProcessGroup alone = ddp::test::group_over(std::make_unique<FakeBackend>(control_), 1);
  control_->fail("barrier 1", Outcome::timeout);
  const auto error = error_of([&] { alone.barrier(Deadline::after(milliseconds(300))).wait(); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::timeout);
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
  const auto given_up = error_of([&] { work.wait(Deadline::after(milliseconds(1500))); });
  ASSERT_TRUE(given_up);
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
  /// The other rank has called this as its first operation.
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
  ProcessGroup group{std::make_shared<collectives::GroupEngine>(ddp::test::members_of(2), std::move(backends),
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
}  // namespace ddp
