// Even use of targets first, costs second: compared with all assignments that there are.
#include "topology/placement/balanced_assignment.hpp"

#include "support/sanitized.hpp"
#include "unit/topology/dice.hpp"

namespace ddp::topology {
namespace {

using Options = std::vector<std::vector<Option>>;

/// Sum of the squares of the numbers of users, and sum of costs.
using Score = std::pair<int, int>;

Score score_of(const Options& options, const std::vector<int>& targets) {
  Score score{0, 0};
  std::vector<int> users(16, 0);
  for (std::size_t user = 0; user < options.size(); ++user) {
    if (options[user].empty()) continue;
    const auto found = std::find_if(options[user].begin(), options[user].end(),
                                    [&](const Option& option) { return option.target == targets[user]; });
    if (found == options[user].end()) return {1 << 30, 0};  // not one of the user's
    score.second += found->cost;
    ++users.at(static_cast<std::size_t>(targets[user]));
  }
  for (const int count : users) score.first += count * count;
  return score;
}

/// Tries everything.
Score best_score(const Options& options, std::vector<int>& targets, std::size_t user = 0) {
  if (user == options.size()) return score_of(options, targets);
  if (options[user].empty()) return best_score(options, targets, user + 1);
  Score best{1 << 30, 0};
  for (const Option& option : options[user]) {
    targets[user] = option.target;
    best = std::min(best, best_score(options, targets, user + 1));
  }
  return best;
}

TEST(BalancedAssignment, MakesWayForAUserWithLessChoice) {
  // user 1 can only have target 0, so user 0 leaves it
  EXPECT_THAT(assign_balanced({{{0, 0}, {1, 0}}, {{0, 0}}}, 2), ElementsAre(1, 0));
  // a chain of three: user 2 wants 0, 0's user goes to 1, 1's user goes to 2
  EXPECT_THAT(assign_balanced({{{0, 0}, {1, 5}}, {{1, 0}, {2, 5}}, {{0, 0}}}, 3), ElementsAre(1, 2, 0));
}

TEST(BalancedAssignment, EvenUseGoesBeforeCosts) {
  EXPECT_THAT(assign_balanced({{{0, 0}, {1, 9}}, {{0, 0}, {1, 9}}}, 2), ElementsAre(0, 1));
  EXPECT_THAT(assign_balanced({{{0, 0}, {1, 9}}, {{0, 0}, {1, 3}}}, 2), ElementsAre(0, 1))
      << "9 + 0 is more than 0 + 3";
  EXPECT_THAT(assign_balanced({{{0, 0}, {1, 3}}, {{0, 0}, {1, 9}}}, 2), ElementsAre(1, 0));
}

TEST(BalancedAssignment, EqualUsersAscend) {
  const std::vector<Option> either{{0, 1}, {1, 1}};
  EXPECT_THAT(assign_balanced({either, either, either, either, either}, 2), ElementsAre(0, 0, 0, 1, 1));
}

TEST(BalancedAssignment, NothingToChooseFrom) {
  EXPECT_THAT(assign_balanced({{}, {{0, 0}}, {}}, 1), ElementsAre(-1, 0, -1));
  EXPECT_THAT(assign_balanced({}, 0), ElementsAre());
}

TEST(BalancedAssignment, NoAssignmentIsBetter) {
  for (std::uint32_t seed = 1; seed <= ::ddp::test::cases(3000); ++seed) {
    ddp::test::Dice dice(seed);
    const int targets = dice.between(1, 4);
    Options options(static_cast<std::size_t>(dice.between(1, 6)));
    for (auto& of_user : options) {
      for (int target = 0; target < targets; ++target) {
        if (!dice.one_in(3)) of_user.push_back({target, dice.between(0, 4)});
      }
    }
    std::vector<int> scratch(options.size(), -1);
    const std::vector<int> found = assign_balanced(options, targets);
    ASSERT_EQ(score_of(options, found), best_score(options, scratch)) << "seed " << seed;
    for (std::size_t user = 0; user < options.size(); ++user) {
      ASSERT_EQ(found[user] < 0, options[user].empty()) << "seed " << seed;
    }
    ASSERT_EQ(found, assign_balanced(options, targets)) << "seed " << seed;
  }
}

}  // namespace
}  // namespace ddp::topology
