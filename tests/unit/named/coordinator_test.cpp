// What rank 0 decides of what ranks announce.
#include "named/coordinator.hpp"

#include "named/comparison.hpp"
#include "named/set_state.hpp"
#include "support/message_check.hpp"

namespace ddp::named {
namespace {

Request request(const std::string& name, std::int64_t elements = 4, Kind kind = Kind::all_reduce) {
  return {.key = {.kind = kind, .name = name},
          .facts = {.tensors = {{.dtype = DType::float32, .shape = {elements, 2}}}}};
}

struct CoordinatorTest : testing::Test {
  void announce(int rank, const std::vector<Request>& requests, std::uint64_t epoch = 0, int set = 0) {
    coordinator_.announce(rank, {.set = set, .epoch = epoch, .requests = requests}, now_);
  }
  /// What rank @p rank is told: "a+b" for a batch, "!a" for a failure, "learned a,b", "joined 1".
  std::vector<std::string> told(int rank) {
    std::vector<std::string> texts;
    for (const auto& [to, message] : coordinator_.decide()) {
      if (to != rank) continue;
      if (const auto* const decision = std::get_if<Decision>(&message.content)) {
        for (const auto& batch : decision->batches) {
          std::string text;
          for (const Request& each : batch) text += (text.empty() ? "" : "+") + full_name(each.key);
          texts.push_back(text);
        }
        for (const Failure& failure : decision->failures) {
          texts.push_back("!" + failure.key.name);
          error_ = failure.error;
        }
      }
      if (const auto* const learned = std::get_if<Learned>(&message.content)) {
        std::string text = "learned";
        for (const auto& batch : learned->batches) {
          for (const Key& key : batch) text += " " + full_name(key);
        }
        texts.push_back(text);
      }
      if (const auto* const all = std::get_if<AllJoined>(&message.content))
        texts.push_back("joined " + std::to_string(all->last));
    }
    return texts;
  }

  Coordinator coordinator_{{0, 1, 2}, 1000};
  Coordinator::Time now_ = Deadline::Clock::now();
  ErrorDetail error_{};
};

TEST(NamedMessages, ComeBackAsTheyWereAndRefuseWhatTheyDoNotAllow) {
  tests::check_message<Announcement>();
  tests::check_message<Decision>();
  tests::check_message<Learned>();
  tests::check_message<Joined>();
  tests::check_message<Leaving>();
  tests::check_message<AllJoined>();
  tests::check_message<Ended>();
}

TEST_F(CoordinatorTest, DecidesWhenTheLastRankHasAnnouncedInWhateverOrder) {
  announce(2, {request("a"), request("b")});
  announce(0, {request("b")});
  EXPECT_THAT(told(0), IsEmpty());
  announce(1, {request("b"), request("a")});
  EXPECT_THAT(told(0), ElementsAre("b"));
  announce(0, {request("a")});
  EXPECT_THAT(told(2), ElementsAre("a"));
}

TEST_F(CoordinatorTest, FusesWhatIsReadyTogetherAndAlikeUpToItsLimit) {
  for (const int rank : {0, 1, 2}) {
    announce(rank,
             {request("a"), request("b"), request("large", 1000), request("c", 4, Kind::broadcast), request("d")});
  }
  EXPECT_THAT(told(1), ElementsAre("a+b", "large", "c", "d"));
}

TEST_F(CoordinatorTest, NamesBothSidesOfWhatDiffers) {
  announce(0, {request("a", 4)});
  announce(1, {request("a", 5)});
  announce(2, {request("a", 4)});
  EXPECT_THAT(told(1), ElementsAre("!a"));
  EXPECT_EQ(error_.code, ErrorCode::mismatch);
  EXPECT_EQ(error_.attempted, "all_reduce 'a'");
  EXPECT_THAT(error_.cause, HasSubstr("ranks 0, 2 have float32[4, 2], sum, on the CPU, rank 1 has float32[5, 2]"));
  for (const int rank : {0, 1, 2}) announce(rank, {request("a")});
  EXPECT_THAT(told(0), ElementsAre("a"));  // the set lives on
}

TEST_F(CoordinatorTest, RowsOfAnAllGatherMayDifferOtherDimensionsNot) {
  for (const int rank : {0, 1, 2}) announce(rank, {request("a", rank, Kind::all_gather)});
  EXPECT_THAT(told(0), ElementsAre("a"));
  for (const int rank : {0, 1, 2}) {
    Request wide = request("a", 1, Kind::all_gather);
    wide.facts.tensors.front().shape = {1, rank == 2 ? 3 : 2};
    announce(rank, {wide});
  }
  EXPECT_THAT(told(0), ElementsAre("!a"));
}

TEST_F(CoordinatorTest, LearnsAnOrderThatRepeatsAndForgetsItWhenRanksLeave) {
  const auto step = [&](std::uint64_t epoch) {
    for (const int rank : {0, 1, 2}) announce(rank, {request("large", 1000), request("a")}, epoch);
    return told(0);
  };
  EXPECT_THAT(step(0), ElementsAre("large", "a"));
  EXPECT_THAT(step(0), ElementsAre("large", "a"));
  EXPECT_THAT(step(0), ElementsAre("learned large a"));
  announce(1, {request("other")}, 0);  // sent before that rank knew
  EXPECT_FALSE(coordinator_.oldest());
  EXPECT_THAT(step(2), ElementsAre("large", "a"));
  EXPECT_THAT(step(2), ElementsAre("large", "a"));
  EXPECT_THAT(step(2), ElementsAre("large", "a"));  // not so soon again
  EXPECT_THAT(step(2), ElementsAre("learned large a"));
}

TEST_F(CoordinatorTest, LearnsTheOrderOfOperationsWithoutNamesByTheirPlaces) {
  std::uint64_t last = 0;
  const auto step = [&] {
    std::vector<std::string> texts;
    for (const Request& each : {request("#"), request("a"), request("#", 1000), request("#")}) {
      Request one = each;
      if (one.key.name == "#") one.key.number = ++last;
      for (const int rank : {0, 1, 2}) announce(rank, {one});
      for (std::string& text : told(0)) texts.push_back(std::move(text));
    }
    return texts;
  };
  EXPECT_THAT(step(), ElementsAre("#1", "a", "#2", "#3"));
  EXPECT_THAT(step(), ElementsAre("#4", "a", "#5", "#6"));
  EXPECT_THAT(step(), ElementsAre("#7", "a", "#8", "#9"));  // which began before the first name
  EXPECT_THAT(step(), ElementsAre("#10", "learned a #11 #12 #13"));
}

TEST_F(CoordinatorTest, LearnsWhatRepeatsWithoutAnyNameAndInTheOrderOfNumbersOnly) {
  const auto decide = [&](std::uint64_t number, std::int64_t elements) {
    Request one = request("#", elements);
    one.key.number = number;
    for (const int rank : {0, 1, 2}) announce(rank, {one});
    return told(0);
  };
  std::uint64_t number = 0;
  std::vector<std::string> texts;
  while (number < 60 && (texts.empty() || !texts.front().starts_with("learned"))) {
    ++number;
    texts = decide(number == 10 ? 11 : number == 11 ? 10 : number, 4 + static_cast<std::int64_t>(number % 3 / 2));
  }
  EXPECT_GT(number, 30U) << "begins behind those that have overtaken each other";
  EXPECT_LT(number, 40U);
  const std::string first = std::to_string(number);
  EXPECT_THAT(texts,
              ElementsAre("learned #" + first + " #" + std::to_string(number + 1) + " #" + std::to_string(number + 2)));
}

TEST_F(CoordinatorTest, DoesNotLearnWhatChanges) {
  for (int round = 0; round < 6; ++round) {
    for (const int rank : {0, 1, 2}) announce(rank, {request("a", 4 + round % 2), request("b")});
    EXPECT_THAT(told(0), ElementsAre("a+b")) << round;
  }
}

TEST_F(CoordinatorTest, JoinedRanksAreNotWaitedFor) {
  announce(0, {request("a")});
  coordinator_.join(1);
  announce(2, {request("a")});
  EXPECT_THAT(told(1), ElementsAre("a"));
  for (const int rank : {0, 2}) announce(rank, {request("b", 4, Kind::all_to_all), request("c", 4, Kind::broadcast)});
  EXPECT_THAT(told(0), ElementsAre("c", "!b"));
  EXPECT_THAT(error_.cause, HasSubstr("rank 1 has called join()"));
  coordinator_.join(2);
  coordinator_.join(0);
  EXPECT_THAT(told(1), ElementsAre("joined 0"));
  announce(0, {request("d")});
  EXPECT_THAT(told(0), IsEmpty());  // all take part again
}

TEST_F(CoordinatorTest, SetsHaveTheirOwnMembersAndNames) {
  Request added{.key = {.kind = Kind::add_set, .name = "#1"}, .facts = {.ranks = {0, 2}}};
  for (const int rank : {0, 1, 2}) announce(rank, {added});
  told(0);
  announce(1, {request("a")});
  announce(0, {request("a")}, 0, 1);
  announce(2, {request("a")}, 0, 1);
  EXPECT_THAT(told(2), ElementsAre("a"));
  ASSERT_TRUE(coordinator_.oldest());
  const auto lines = coordinator_.stalled(now_);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_THAT(lines.front(), HasSubstr("all_reduce 'a' waits for ranks 0, 2"));
}

TEST_F(CoordinatorTest, SaysWhoIsMissingAndWhereItWaitsInstead) {
  announce(0, {request("layer1.weight")});
  announce(2, {request("layer1.weight")});
  announce(1, {request("layer1.weigth")});
  const auto lines = coordinator_.stalled(now_);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines.front(),
            "all_reduce 'layer1.weight' waits for rank 1; rank 1 waits in all_reduce 'layer1.weigth', "
            "whose name is similar");
  const auto overdue = coordinator_.overdue(now_);
  ASSERT_TRUE(overdue);
  EXPECT_EQ(overdue->code, ErrorCode::timeout);
  EXPECT_THAT(overdue->ranks, ElementsAre(1));
}

TEST_F(CoordinatorTest, ANameIsSimilarOnlyToOneOfItsKindAndLength) {
  announce(0, {request("loss")});
  announce(2, {request("loss")});
  announce(1, {request("accuracy"), request("bias"), {.key = {.kind = Kind::broadcast, .name = "losx"}}});
  const auto unlike = coordinator_.stalled(now_);
  EXPECT_THAT(unlike, Each(Not(HasSubstr("similar"))));
  announce(1, {request("losses" + std::string(300, 's')), request("lost")});
  EXPECT_THAT(coordinator_.stalled(now_),
              Contains(AllOf(HasSubstr("'loss' waits for rank 1"),
                             HasSubstr("rank 1 waits in all_reduce 'lost', whose name is similar"))));
}

TEST(NamedTexts, NamesAreShownWithoutControlCharacters) {
  EXPECT_EQ(name_of({.kind = Kind::broadcast, .name = std::string("a\0b\n", 4)}), "broadcast 'a\\x00b\\x0a'");
  EXPECT_LT(name_of({.kind = Kind::broadcast, .name = std::string(4096, 'x')}).size(), 200U);
}

TEST(LearnedOrderTest, CountsBatchesThatAreAllThere) {
  const auto key = [](const char* name) { return Key{.kind = Kind::all_reduce, .name = name}; };
  LearnedOrder order({{key("a"), key("b")}, {key("c")}});
  EXPECT_EQ(order.ready(), 0U);
  order.hold(key("c"));
  order.hold(key("a"));
  EXPECT_EQ(order.ready(), 0U);
  order.hold(key("b"));
  EXPECT_EQ(order.ready(), 2U);
  const std::int64_t before = order.proof();
  EXPECT_EQ(order.take().size(), 2U);
  EXPECT_NE(order.proof(), before);
  EXPECT_EQ(order.ready(), 1U);
}

TEST(LearnedOrderTest, NumbersGoOnFromTurnToTurn) {
  const auto key = [](std::uint64_t number, const char* name = "#") {
    return Key{.kind = Kind::all_reduce, .name = name, .number = number};
  };
  LearnedOrder order({{key(5)}, {key(0, "a"), key(6)}});
  EXPECT_EQ(order.model_of(key(5)), key(3));
  EXPECT_EQ(order.model_of(key(10)), key(4));
  EXPECT_EQ(order.model_of(key(0, "a")), key(0, "a"));
  EXPECT_FALSE(order.hold(key(4)));
  EXPECT_FALSE(order.hold(key(0)));  // a name, though like theirs
  EXPECT_FALSE(order.hold(key(5, "other")));
  EXPECT_TRUE(order.hold(key(7)));  // of the next turn: a thread has overtaken another
  EXPECT_EQ(order.ready(), 0U);
  EXPECT_TRUE(order.hold(key(5)));
  EXPECT_TRUE(order.hold(key(0, "a")));
  EXPECT_EQ(order.ready(), 1U);
  EXPECT_TRUE(order.hold(key(6)));
  EXPECT_EQ(order.ready(), 2U);
  EXPECT_THAT(order.take(), ElementsAre(key(5)));
  EXPECT_EQ(order.ready(), 2U);
  EXPECT_THAT(order.take(), ElementsAre(key(0, "a"), key(6)));
  EXPECT_THAT(order.next(), ElementsAre(key(7)));
  EXPECT_EQ(order.ready(), 1U);
  EXPECT_FALSE(order.hold(key(6)));  // has been taken
  order.take();
  EXPECT_THAT(order.next(), ElementsAre(key(0, "a"), key(8)));
}

TEST(LearnedOrder, IsLeftWhenWhatIsHeldWaitsAndNothingElseIsSubmitted) {
  using std::chrono::milliseconds;
  constexpr milliseconds kLimit{50};
  const Pending::Time start{};
  const auto pending = std::make_shared<Pending>();
  pending->phase = Pending::Phase::held;
  pending->since = start;
  const Active active{{{.kind = Kind::all_reduce, .name = "b"}, pending}};
  EXPECT_FALSE(is_stuck(active, start, start + milliseconds(49), kLimit));
  EXPECT_TRUE(is_stuck(active, start, start + milliseconds(50), kLimit));
  EXPECT_FALSE(is_stuck(active, start + milliseconds(40), start + milliseconds(80), kLimit)) << "others still come";
  EXPECT_TRUE(is_stuck(active, start + milliseconds(40), start + milliseconds(90), kLimit));
  EXPECT_TRUE(is_stuck(active, start + milliseconds(999), start + milliseconds(1000), kLimit)) << "but not for ever";
  pending->phase = Pending::Phase::running;
  EXPECT_FALSE(is_stuck(active, start, start + milliseconds(5000), kLimit));
}

}  // namespace
}  // namespace ddp::named
