// A line of the event log from what nodes tell of their ranks.
#include "diagnostics/metrics/metrics_page.hpp"

namespace ddp::diagnostics {
namespace {

StepProgress after_steps(int rank, std::int64_t steps, std::int64_t step_ns, int straggler = -1) {
  return {.rank = rank,
          .steps = steps,
          .step_ns = steps * step_ns,
          .communication_ns = steps * 100,
          .hidden_ns = steps * 75,
          .straggler_rank = straggler,
          .straggler_delay_ns = 2'000'000};
}

TEST(JobProgress, IsToldOnceAllNodesHaveToldIt) {
  JobProgress progress;
  EXPECT_FALSE(progress.add(0, 2, 0, {after_steps(0, 10, 500'000'000)}));
  auto facts = progress.add(1, 2, 0, {after_steps(1, 9, 500'000'000)});
  ASSERT_TRUE(facts);
  EXPECT_EQ(facts->ranks, 2);
  EXPECT_EQ(facts->least_steps, 9);
  EXPECT_EQ(facts->most_steps, 10);
  EXPECT_DOUBLE_EQ(facts->step_s.value_or(0), 0.5);
  EXPECT_DOUBLE_EQ(facts->hidden.value_or(0), 0.75);
  EXPECT_FALSE(facts->straggler_rank);
  // the next line has what came since: ten steps of 1 s on rank 0, ten of 0.5 s on rank 1
  auto slower = after_steps(0, 20, 0, 1);
  slower.step_ns = 15'000'000'000;
  EXPECT_FALSE(progress.add(0, 2, 0, {slower}));
  facts = progress.add(1, 2, 0, {after_steps(1, 19, 500'000'000, 1)});
  ASSERT_TRUE(facts);
  EXPECT_DOUBLE_EQ(facts->step_s.value_or(0), 0.75);
  EXPECT_DOUBLE_EQ(facts->slowest_s.value_or(0), 1);
  EXPECT_EQ(facts->straggler_rank, 1);
  EXPECT_DOUBLE_EQ(facts->straggler_delay_s, 0.002);
}

TEST(JobProgress, GoesOnWithoutANodeThatTellsNothing) {
  JobProgress progress;
  EXPECT_FALSE(progress.add(0, 2, 0, {after_steps(0, 10, 1)}));
  const auto facts = progress.add(0, 2, 0, {after_steps(0, 20, 1)});
  ASSERT_TRUE(facts);
  EXPECT_EQ(facts->ranks, 1);
  EXPECT_EQ(facts->most_steps, 10) << "what is new belongs to the next line";
}

TEST(JobProgress, OfAnotherAttemptBeginsAnew) {
  JobProgress progress;
  ASSERT_TRUE(progress.add(0, 1, 0, {after_steps(0, 10, 1), after_steps(1, 10, 1)}));
  const auto facts = progress.add(0, 1, 1, {after_steps(0, 3, 1'000'000'000)});
  ASSERT_TRUE(facts);
  EXPECT_EQ(facts->ranks, 1);
  EXPECT_EQ(facts->most_steps, 3);
  EXPECT_DOUBLE_EQ(facts->step_s.value_or(0), 1);
}

TEST(JobProgress, WithoutStepsHasNoMeans) {
  JobProgress progress;
  ASSERT_TRUE(progress.add(0, 1, 0, {after_steps(0, 10, 1)}));
  const auto facts = progress.add(0, 1, 0, {after_steps(0, 10, 1)});
  ASSERT_TRUE(facts);
  EXPECT_FALSE(facts->step_s || facts->slowest_s || facts->hidden);
}

}  // namespace
}  // namespace ddp::diagnostics
