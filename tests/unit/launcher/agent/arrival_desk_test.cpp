// A node's question about absent ranks: one to the coordinator, however many calls wait for it.
#include "agent/arrival_desk.hpp"

namespace ddp::launcher {
namespace {

const std::string kAwaitedValue = "ddp.fence.1";
const ArrivalDesk::Time kFirstCall = ArrivalDesk::Time{} + 1h;

struct Desk {
  std::vector<control::FindAbsent> asked{};
  std::vector<std::uint64_t> arrived{};
  ArrivalDesk desk{4, [this](const control::FindAbsent& question) { asked.push_back(question); },
                   [this](std::uint64_t call) { arrived.push_back(call); }};

  void call(std::uint64_t id, int rank, std::optional<Deadline> limit = {}, ArrivalDesk::Time now = kFirstCall) {
    desk.add({.id = id, .rank = rank, .arrival = kAwaitedValue, .limit = limit}, now);
  }
  void found(std::vector<control::RankRange> ranks) {
    desk.found({.epoch = 4, .name = kAwaitedValue, .ranks = std::move(ranks)});
  }
};

TEST(ArrivalDeskTest, CallsShareOneQuestionAndThoseForAbsentRanksStayOpen) {
  Desk node;
  for (const int rank : {2, 3, 4, 5, 6, 7, 8}) node.call(static_cast<std::uint64_t>(rank), rank);
  EXPECT_THAT(node.asked, ElementsAre(control::FindAbsent{.epoch = 4, .name = kAwaitedValue, .limit_ms = 2000}));
  EXPECT_THAT(node.arrived, IsEmpty());
  node.found({{.first = 3, .count = 2}, {.first = 7, .count = 1}});
  EXPECT_THAT(node.arrived, ElementsAre(2, 5, 6, 8));
  node.call(20, 4);
  node.call(21, 5);
  EXPECT_EQ(node.asked.size(), 1U);
  EXPECT_THAT(node.arrived, ElementsAre(2, 5, 6, 8, 21));
  node.found({});  // once more: the open ones were forgotten
  EXPECT_EQ(node.arrived.size(), 5U);
}

TEST(ArrivalDeskTest, ItAsksAgainWhenTheAnswerIsOld) {
  Desk node;
  node.call(1, 3);
  node.found({{.first = 3, .count = 1}});
  node.call(2, 3, {}, kFirstCall + control::kAbsentFresh - 1ms);
  EXPECT_EQ(node.asked.size(), 1U);
  node.call(3, 3, {}, kFirstCall + control::kAbsentFresh);
  EXPECT_EQ(node.asked.size(), 2U);
  node.found({});
  EXPECT_THAT(node.arrived, ElementsAre(3));
}

TEST(ArrivalDeskTest, TheCoordinatorGetsHalfOfTheAskersTime) {
  Desk node;
  node.call(1, 3, Deadline{kFirstCall + 3s});
  EXPECT_EQ(node.asked.at(0).limit_ms, 1500);
  Desk late;
  late.call(1, 3, Deadline{kFirstCall - 3s});
  EXPECT_EQ(late.asked.at(0).limit_ms, 0);
}

TEST(ArrivalDeskTest, AnswersThatWereNotAskedForAreIgnored) {
  Desk node;
  node.found({});
  node.call(1, 3);
  node.desk.found({.epoch = 4, .name = "ddp.fence.9"});
  EXPECT_THAT(node.arrived, IsEmpty());
}

TEST(ArrivalDeskTest, RanksBecomeRanges) {
  EXPECT_THAT(ranges_of({}), IsEmpty());
  EXPECT_THAT(ranges_of({1, 2, 3, 7, 9, 10}),
              ElementsAre(control::RankRange{.first = 1, .count = 3}, control::RankRange{.first = 7, .count = 1},
                          control::RankRange{.first = 9, .count = 2}));
}

}  // namespace
}  // namespace ddp::launcher
