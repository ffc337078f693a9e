// What a Join refuses, and what it does when it is left.
#include <ddp/join.hpp>

#include "unit/reducer/reducer_fixture.hpp"

namespace ddp {
namespace {

class JoinTest : public ReducerTest {
 protected:
  static std::string cause_of(const std::function<void()>& call) {
    const auto error = error_of(call);
    return error ? error->cause() : "no error";
  }
  /// The other rank's announcements.
  void answer(std::int32_t code) {
    control_->effect = [code](const ddp::Operation& operation) {
      twin(operation);
      if (operation.kind == OperationKind::all_gather && operation.dtype == DType::int32) {
        static_cast<std::int32_t*>(operation.output.data())[1] = code;
      }
    };
  }
  /// It takes one step more, of the kind of @p code. @p also sees each operation.
  void answer_with_one_step(std::int32_t code, std::function<void(const ddp::Operation&)> also) {
    auto left = std::make_shared<int>(1);
    control_->effect = [=, also = std::move(also)](const ddp::Operation& operation) {
      twin(operation);
      also(operation);
      if (operation.kind == OperationKind::all_gather && operation.dtype == DType::int32) {
        static_cast<std::int32_t*>(operation.output.data())[1] = (*left)-- > 0 ? code : 16;
      }
    };
  }
  std::ptrdiff_t gathers() const {
    return std::ranges::count_if(control_->events(),
                                 [](const auto& event) { return event.starts_with("begin all_gather"); });
  }
};

TEST_F(JoinTest, RefusesWhatCannotBeJoined) {
  EXPECT_THAT(cause_of([] { Join({}); }), HasSubstr("nothing to join"));
  Reducer reducer = make();
  Join join({&reducer.joinable()});
  EXPECT_THAT(cause_of([&] { Join({&reducer.joinable()}); }), HasSubstr("in another Join"));
  EXPECT_THAT(cause_of([&] { reducer.change_group(group_); }), HasSubstr("has not ended"));
  EXPECT_THAT(cause_of([&] { reducer.broadcast_buffers(std::array{TensorView{values_[0]}}); }),
              HasSubstr("1 buffers, but 0 are known"));
  Reducer hooked(parameters(), group_, {.comm_hook = all_reduce_hook()});
  EXPECT_THAT(cause_of([&] { Join({&hooked.joinable()}, {.divide_by_initial_world_size = false}); }),
              HasSubstr("divide by the number of all ranks"));
  Reducer skipping(parameters(), group_, {.find_unused_parameters = true, .skip_all_reduce_unused = true});
  EXPECT_THAT(cause_of([&] { Join({&skipping.joinable()}); }), HasSubstr("must agree"));
  Join none({}, {.enable = false});
  none.finish();
}

TEST_F(JoinTest, RefusesOtherGroupsAndReducersWithinAStep) {
  Reducer reducer = make();
  const auto control = std::make_shared<test::BackendControl>();
  control->effect = twin;
  Reducer elsewhere(
      parameters(),
      ProcessGroup{GroupEngine::make(
          collectives::GroupMembers{
              .name = "other", .rank = 0, .global_ranks = {0, 2}, .endpoints = {{}, {}}, .channel = nullptr},
          test::fake_backends(control), collectives::ConnectOptions{}, std::chrono::seconds(60))});
  EXPECT_THAT(cause_of([&] {
                Join({&reducer.joinable(), &elsewhere.joinable()});
              }),
              HasSubstr("groups 'test' and 'other' are joined"));
  reducer.prepare_for_backward();
  EXPECT_THAT(cause_of([&] { Join({&reducer.joinable()}); }), HasSubstr("the last step was not finalized"));
}

TEST_F(JoinTest, ARankThatHasRunOutEndsOrShrinksTheSteps) {
  {
    Reducer reducer = make();
    Join join({&reducer.joinable()}, {.throw_on_early_termination = true});
    answer(16 * 3);  // both options, and no event
    const Error error = test::thrown_by([&] { reducer.prepare_for_backward(); });
    EXPECT_EQ(error.code(), ErrorCode::aborted);
    EXPECT_THAT(error.ranks(), ElementsAre(1));
    EXPECT_THAT(error.cause(), HasSubstr("rank 1 has run out of inputs"));
  }
  Reducer reducer = make();
  Join join({&reducer.joinable()}, {.divide_by_initial_world_size = false});
  answer(0);
  step(reducer);
  EXPECT_THAT(gradients_[3], testing::Each(8.0F)) << "the double has added its own, but only this rank counts";
}

TEST_F(JoinTest, TheDestructorFinishesUnlessAnExceptionIsOnItsWay) {
  Reducer reducer = make();
  answer(16);  // the other rank has run out, too
  const auto broadcasts = [&] {
    return std::ranges::count_if(control_->events(),
                                 [](const auto& event) { return event.starts_with("end broadcast"); });
  };
  const auto before = broadcasts();
  try {
    const Join join({&reducer.joinable()});
    throw std::runtime_error("the program's own");
  } catch (const std::runtime_error&) {
    EXPECT_EQ(broadcasts(), before);
  }
  { const Join join({&reducer.joinable()}); }
  EXPECT_GT(broadcasts(), before) << "the last rank's parameters";
  answer(16 + 1);
  step(reducer);
  EXPECT_EQ(reducer.stats().iteration, 1U) << "it is in no Join any more";
}

TEST_F(JoinTest, RanksThatDoOtherThingsAreNamed) {
  const auto expect_mismatch = [&](const std::function<void()>& call) {
    const Error error = test::thrown_by(call);
    EXPECT_EQ(error.code(), ErrorCode::mismatch);
    EXPECT_THAT(error.ranks(), ElementsAre(1));
  };
  Reducer reducer = make();
  {
    answer(1 + 1);  // another option: told before anything else is exchanged
    Join join({&reducer.joinable()});
    expect_mismatch([&] { reducer.prepare_for_backward(); });
    const auto before = gathers();
    join.finish();
    EXPECT_EQ(gathers(), before) << "nobody would answer";
  }
  for (const bool rebuild : {false, true}) {
    Reducer rebuilding = make(rebuild);
    answer(16 + 1);
    Join join({&rebuilding.joinable()});
    step(rebuilding);
    answer(16 + 2);  // a local step, whose rank sends no buckets and rebuilds none
    if (rebuild) {
      expect_mismatch([&] { rebuilding.prepare_for_backward(); });
      continue;
    }
    rebuilding.prepare_for_backward();
    for (const std::size_t index : {3, 2, 1, 0}) rebuilding.mark_ready(index);
    expect_mismatch([&] { rebuilding.finalize(); });
  }
}

TEST_F(JoinTest, HasEndedWhenItsFinishHasFailed) {
  Reducer reducer = make();
  std::ptrdiff_t before = 0;
  {
    Join join({&reducer.joinable()});
    answer(1);  // another option
    EXPECT_TRUE(error_of([&] { join.finish(); }));
    before = gathers();
  }
  EXPECT_EQ(gathers(), before) << "the destructor finished once more";
  Join another({&reducer.joinable()});
  answer(16);
}

TEST_F(JoinTest, AStepOfOthersSaysNothingAboutThisRank) {
  Reducer reducer(parameters(), group_, {.bucket_cap_bytes = 40, .log = {.find_straggler = true}});
  Join join({&reducer.joinable()});
  std::vector<std::int64_t> waited;
  answer_with_one_step(16 + 1, [&](const ddp::Operation& operation) {
    if (operation.kind != OperationKind::all_gather || operation.dtype != DType::int64) return;
    waited.push_back(*static_cast<const std::int64_t*>(operation.input.data()));
  });
  join.finish();
  EXPECT_THAT(waited, ElementsAre(-1)) << "it was no straggler, and has waited for nobody";
  EXPECT_EQ(reducer.log().iteration, 0);
  EXPECT_TRUE(reducer.log().join_uneven_inputs);
  EXPECT_EQ(reducer.stats().overlap.count(), 0);
  step(reducer);
  EXPECT_THAT(reducer.ready_order(), ElementsAre(3, 2, 1, 0)) << "no order is known: as in the first step";
}

TEST_F(JoinTest, CountsOfAStaticGraphComeToARankWhoseFirstStepIsOneOfOthers) {
  Reducer reducer(parameters(), group_, {.bucket_cap_bytes = 40, .rebuild_buckets = false, .static_graph = true});
  Join join({&reducer.joinable()});
  answer_with_one_step(16 + 1, [](const ddp::Operation& operation) {
    if (operation.kind != OperationKind::broadcast || operation.dtype != DType::int64) return;
    EXPECT_EQ(operation.root, 1);
    std::ranges::copy(std::array{2, 1, 0, 1}, static_cast<std::int64_t*>(operation.output.data()));
  });
  join.finish();
  step(reducer, {3, 1, 0, 0});
  EXPECT_TRUE(error_of([&] { step(reducer, {3, 1, 0}); }));
}

TEST_F(JoinTest, AnErrorInAStepOfOthersIsLogged) {
  Reducer reducer = make();
  Join join({&reducer.joinable()});
  answer(16 + 1);
  control_->fail("all_reduce 4");  // its first bucket
  EXPECT_TRUE(error_of([&] { join.finish(); }));
  EXPECT_TRUE(reducer.log().has_error);
}

TEST_F(JoinTest, StepsOfOthersCanBeRepeatedOneByOne) {
  Reducer reducer = make();
  const auto broadcasts = [&] {
    return std::ranges::count_if(control_->events(),
                                 [](const auto& event) { return event.starts_with("end broadcast"); });
  };
  Join join({&reducer.joinable({TensorView{values_[0]}})});
  std::vector<std::int32_t> events{16 + 3, 16 + 1, 16 + 2};  // buffers, a step, a step of no_sync
  control_->effect = [&events](const ddp::Operation& operation) {
    twin(operation);
    if (operation.kind != OperationKind::all_gather || operation.dtype != DType::int32) return;
    static_cast<std::int32_t*>(operation.output.data())[1] = events.empty() ? 16 : events.front();
    if (!events.empty()) events.erase(events.begin());
  };
  EXPECT_EQ(join.shadow_step(), JoinEvent::step);
  EXPECT_EQ(events.size(), 1U) << "the step belongs to what comes before it";
  EXPECT_EQ(join.shadow_step(), JoinEvent::local_step);
  const auto before = broadcasts();
  join.end();
  EXPECT_GT(broadcasts(), before) << "the last rank's parameters";
  EXPECT_THAT(cause_of([&] { static_cast<void>(join.shadow_step()); }), HasSubstr("has ended"));

  Join another({&reducer.joinable()});
  EXPECT_THAT(cause_of([&] { static_cast<void>(another.shadow_step()); }), HasSubstr("all ranks have run out"));
}

}  // namespace
}  // namespace ddp
