// Which ranks a fence lacks: each node that may have them is asked once, and all that ask get one answer.
#include "coordinator/absence_inquiries.hpp"

#include "coordinator/modex_router.hpp"

namespace ddp::launcher {
namespace {

using control::AbsentFound, control::FindAbsent, control::RankRange;

const std::string kFenceName = "ddp.fence.2";
const AbsenceInquiries::Time kAskedAt = AbsenceInquiries::Time{} + 1h;

FindAbsent question(int limit_ms = 1000) { return {.epoch = 3, .name = kFenceName, .limit_ms = limit_ms}; }
AbsentFound found(std::vector<RankRange> ranks) { return {.epoch = 3, .name = kFenceName, .ranks = std::move(ranks)}; }

std::vector<int> receivers(const AbsenceInquiries::Outgoing& outgoing) {
  std::vector<int> nodes;
  for (const auto& each : outgoing) nodes.push_back(each.first);
  return nodes;
}
AbsentFound answer_in(const AbsenceInquiries::Outgoing& outgoing) {
  return std::get<AbsentFound>(control::decode(control::encode(outgoing.at(0).second)));
}

/// Node 0 has ranks 0 and 1, node 1 has rank 2, node 2 has ranks 3 to 5.
AbsenceInquiries inquiries() { return {3, {0, 2, 3, 6}}; }

TEST(AbsenceInquiriesTest, AsksTheNodesThatAreNotInTheFenceAndAnswersAllThatAsk) {
  AbsenceInquiries all = inquiries();
  const auto asked = all.ask(0, question(), {0}, kAskedAt);
  EXPECT_EQ(receivers(asked), (std::vector<int>{1, 2}));
  EXPECT_EQ(std::get<FindAbsent>(control::decode(control::encode(asked[0].second))), question());
  EXPECT_THAT(all.ask(2, question(), {0}, kAskedAt), IsEmpty());
  EXPECT_THAT(all.ask(0, question(), {0}, kAskedAt), IsEmpty());
  EXPECT_THAT(all.found(2, found({{.first = 3, .count = 1}, {.first = 5, .count = 1}}), kAskedAt), IsEmpty());
  const auto answers = all.found(1, found({{.first = 2, .count = 1}}), kAskedAt);
  EXPECT_EQ(receivers(answers), (std::vector<int>{0, 2}));
  EXPECT_EQ(answer_in(answers), found({{.first = 2, .count = 2}, {.first = 5, .count = 1}}));
  EXPECT_EQ(all.next_deadline(), std::nullopt);
}

TEST(AbsenceInquiriesTest, WhereAllNodesAreInTheFenceNoRankIsAbsent) {
  AbsenceInquiries all = inquiries();
  const auto answers = all.ask(1, question(), {0, 1, 2}, kAskedAt);
  EXPECT_EQ(receivers(answers), (std::vector<int>{1}));
  EXPECT_EQ(answer_in(answers), found({}));
}

TEST(AbsenceInquiriesTest, AnAnswerServesForAWhileAndThenTheNodesAreAskedAgain) {
  AbsenceInquiries all = inquiries();
  EXPECT_EQ(all.ask(0, question(), {0, 1}, kAskedAt).size(), 1U);
  EXPECT_EQ(all.found(2, found({{.first = 4, .count = 1}}), kAskedAt).size(), 1U);
  const auto again = all.ask(1, question(), {0, 1}, kAskedAt + control::kAbsentFresh - 1ms);
  EXPECT_EQ(receivers(again), (std::vector<int>{1}));
  EXPECT_EQ(answer_in(again), found({{.first = 4, .count = 1}}));
  EXPECT_EQ(receivers(all.ask(0, question(), {0, 1}, kAskedAt + control::kAbsentFresh)), (std::vector<int>{2}));
  EXPECT_EQ(answer_in(all.found(2, found({}), kAskedAt + control::kAbsentFresh)), found({}));
}

TEST(AbsenceInquiriesTest, AllRanksOfANodeThatDoesNotAnswerInTimeAreAbsent) {
  AbsenceInquiries all = inquiries();
  EXPECT_EQ(all.ask(0, question(700), {0}, kAskedAt).size(), 2U);
  EXPECT_EQ(all.next_deadline()->when(), kAskedAt + 700ms);
  EXPECT_THAT(all.found(1, found({}), kAskedAt), IsEmpty());
  EXPECT_THAT(all.time_passed(kAskedAt + 699ms), IsEmpty());
  const auto answers = all.time_passed(kAskedAt + 700ms);
  EXPECT_EQ(answer_in(answers), found({{.first = 3, .count = 3}}));
  EXPECT_THAT(all.time_passed(kAskedAt + 701ms), IsEmpty());
  EXPECT_THAT(all.found(2, found({}), kAskedAt + 701ms), IsEmpty());  // too late
}

TEST(AbsenceInquiriesTest, ANodeSpeaksForItsOwnRanksOnlyAndOnce) {
  AbsenceInquiries all = inquiries();
  EXPECT_EQ(all.ask(0, question(), {0}, kAskedAt).size(), 2U);
  const int most = std::numeric_limits<int>::max();
  EXPECT_THAT(
      all.found(1, found({{.first = 0, .count = 1}, {.first = 2, .count = 2}, {.first = 2, .count = most}}), kAskedAt),
      IsEmpty());
  EXPECT_THAT(all.found(1, found({{.first = 2, .count = 1}}), kAskedAt), IsEmpty());
  EXPECT_THAT(all.found(0, found({{.first = 0, .count = 1}}), kAskedAt), IsEmpty());  // was not asked
  EXPECT_EQ(answer_in(all.found(2, found({}), kAskedAt)), found({}));
}

TEST(AbsenceInquiriesTest, TheRouterKnowsWhichNodesAreInTheFence) {
  ModexRouter router{3, {2, 1, 3}};
  EXPECT_EQ(receivers(router.find_absent(0, question(), kAskedAt)), (std::vector<int>{0, 1, 2}));
  EXPECT_THAT(router.fence(1, {.epoch = 3}), IsEmpty());
  EXPECT_THAT(router.fence(0, {.epoch = 3, .ranks = {0, 2}}), IsEmpty());  // another fence
  FindAbsent other = question();
  other.name = "ddp.fence.3";
  EXPECT_EQ(receivers(router.find_absent(1, other, kAskedAt)), (std::vector<int>{0, 2}));
}

/// What the coordinator takes in and sends for a fence of 128 nodes that lacks one rank on each: per node one question
/// and one answer each way, where direct modex requests would be 127 x 8 x 4 a node.
TEST(AbsenceInquiriesTest, MessagesGrowWithTheNodesAndNotWithTheRanks) {
  constexpr int kNodes = 128, kRanksPerNode = 8;
  ModexRouter router{3, std::vector<int>(kNodes, kRanksPerNode)};
  std::size_t messages = 0;
  const auto count = [&](const AbsenceInquiries::Outgoing& outgoing) {
    messages += 1 + outgoing.size();
    return outgoing;
  };
  for (int node = 0; node < kNodes; ++node) count(router.find_absent(node, question(), kAskedAt));
  AbsenceInquiries::Outgoing answers;
  for (int node = 0; node < kNodes; ++node)
    answers = count(router.absences().found(node, found({{.first = node * kRanksPerNode, .count = 1}}), kAskedAt));
  EXPECT_EQ(messages, 4U * kNodes);
  ASSERT_EQ(answers.size(), static_cast<std::size_t>(kNodes));
  EXPECT_EQ(answer_in(answers).ranks.size(), static_cast<std::size_t>(kNodes));
  const auto bytes_of = [](const control::Message& message) { return std::get<control::Encoded>(message).bytes.get(); };
  EXPECT_EQ(bytes_of(answers.front().second), bytes_of(answers.back().second));
}

}  // namespace
}  // namespace ddp::launcher
