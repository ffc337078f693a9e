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
  Reducer reducer = make();
  for (const std::int32_t code : {1 + 1, 16 + 2}) {  // another option; a local step
    answer(code);
    Join join({&reducer.joinable()});
    reducer.prepare_for_backward();
    for (const std::size_t index : {3, 2, 1, 0}) reducer.mark_ready(index);
    reducer.finalize();
    const auto error = error_of([&] { join.finish(); });
    ASSERT_TRUE(error);
    EXPECT_EQ(error->code(), ErrorCode::mismatch);
    EXPECT_THAT(error->ranks(), ElementsAre(1));
    answer(16);
  }
}

}  // namespace
}  // namespace ddp
