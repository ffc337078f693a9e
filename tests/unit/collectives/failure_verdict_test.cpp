// What members' replies prove, as a function of the replies alone.
#include "collectives/failure_verdict.hpp"

namespace ddp::collectives {
namespace {

using Kind = world::PeerReply::Kind;
using Ranks = std::vector<int>;

/// Four members, of which this is the first; world ranks are ten times the rank in the group.
const GroupMembers kMembers{.name = "test", .rank = 0, .global_ranks = {0, 10, 20, 30}, .channel = nullptr};

Operation summed(std::size_t count = 100) {
  Operation operation;
  operation.kind = OperationKind::all_reduce;
  operation.count = count;
  operation.sequence = 5;
  return operation;
}

MemberReply none(int rank, Kind kind) { return {.rank = rank, .kind = kind}; }

MemberReply behind(int rank) {
  return {
      .rank = rank, .kind = Kind::answered, .status = StatusAnswer{.last_issued = 4, .fingerprint = 0, .waits = true}};
}

MemberReply called(int rank, const Operation& operation) {
  return {.rank = rank,
          .kind = Kind::answered,
          .status = StatusAnswer{.last_issued = 5,
                                 .fingerprint = operation.fingerprint(),
                                 .description = operation.description(),
                                 .waits = true}};
}

MemberReply in_step(int rank) { return called(rank, summed()); }

Error mismatch() { return Error{{.code = ErrorCode::mismatch, .attempted = "a", .cause = "b"}}; }

std::optional<Error> after_time_out(const std::vector<MemberReply>& replies) {
  return judge(kMembers, summed(), std::nullopt, replies);
}
std::optional<Error> after_failure(const std::vector<MemberReply>& replies) {
  return judge(kMembers, summed(), communication_failure(summed(), "ECONNRESET (104)"), replies);
}

TEST(FailureVerdict, AnotherMembersVerdictComesBeforeAllElse) {
  MemberReply decided = in_step(3);
  decided.status->verdict = mismatch();
  const Error error = after_time_out({none(1, Kind::refused), called(2, summed(7)), decided}).value();
  EXPECT_STREQ(error.what(), mismatch().what());
}

TEST(FailureVerdict, DifferingCallsComeBeforeLostRanks) {
  const Error error = after_failure({none(1, Kind::refused), called(2, summed(7)), in_step(3)}).value();
  EXPECT_EQ(error.code(), ErrorCode::mismatch);
  EXPECT_EQ(error.ranks(), (Ranks{0, 20, 30}));
  EXPECT_THAT(error.cause(), HasSubstr("; ranks 0, 30: all_reduce #5 of float32 x 100, sum; rank 20: all_reduce #5"));
  EXPECT_EQ(error.native(), "ECONNRESET (104)");
}

TEST(FailureVerdict, WhoIsHeldUpInAnEarlierCallIsNotTheCulprit) {
  MemberReply busy = behind(3);
  busy.status->waits = false;
  const Error error = after_time_out({behind(1), in_step(2), busy}).value();
  EXPECT_EQ(error.code(), ErrorCode::timeout);
  EXPECT_EQ(error.ranks(), (Ranks{30}));
  const Error all_wait = after_time_out({behind(1), in_step(2), behind(3)}).value();
  EXPECT_EQ(all_wait.ranks(), (Ranks{10, 30}));
}

TEST(FailureVerdict, ATransferThatHoldsARankUpIsNamedWithItsPeer) {
  MemberReply held = behind(1);
  held.status->waits = false;
  held.status->transfer = {.description = "recv of float32 x 4 from 3, tag 7", .peer = 3, .receives = true};
  const Error error = after_time_out({held, in_step(2), in_step(3)}).value();
  EXPECT_EQ(error.code(), ErrorCode::timeout);
  EXPECT_EQ(error.ranks(), Ranks{30});
  EXPECT_THAT(error.what(), HasSubstr("recv of float32 x 4 from 3, tag 7: rank 30 is alive but sent rank 10 nothing"));
  held.status->transfer->receives = false;
  EXPECT_THAT(after_time_out({held, in_step(2), in_step(3)})->cause(),
              HasSubstr("rank 30 is alive but did not take it from rank 10"));
  held.status->transfer->peer = 4;  // no member
  EXPECT_EQ(after_time_out({held, in_step(2), in_step(3)})->ranks(), Ranks{10});
  held.status->transfer->peer = 3;
  // one that nothing holds up is at fault itself
  MemberReply idle = behind(2);
  idle.status->waits = false;
  EXPECT_EQ(after_time_out({held, idle, in_step(3)})->ranks(), Ranks{20});
}

TEST(FailureVerdict, AMessageThatDoesNotFitIsToldByBothSizes) {
  Operation receive;
  receive.kind = OperationKind::recv;
  receive.count = 4;
  receive.root = 2;
  receive.tag = 3;
  const auto error_of = [&](DType sent, std::size_t count) {
    return unfit_message(kMembers, {.receive = receive, .sent = sent, .count = count});
  };
  const Error plain = error_of(DType::float32, 8);
  EXPECT_EQ(plain.code(), ErrorCode::mismatch);
  EXPECT_EQ(plain.ranks(), (Ranks{0, 20}));
  EXPECT_THAT(plain.what(), HasSubstr("recv of float32 x 4 from 2, tag 3: rank 20 sent float32 x 8 to rank 0"));
  receive.part_of = "all_to_all";
  receive.row = 2;
  EXPECT_THAT(error_of(DType::float32, 6).what(),
              HasSubstr("all_to_all: recv of float32 x 4 from 2: rank 20 sent 3 rows (float32 x 6) to rank 0, which "
                        "expects 2"));
  EXPECT_THAT(error_of(DType::int32, 4).what(), HasSubstr("rank 20 sent int32 x 4 to rank 0"));
  EXPECT_THAT(error_of(DType::float32, 5).what(), HasSubstr("rank 20 sent float32 x 5 to rank 0"));
}

TEST(FailureVerdict, AMismatchThatWasProvedStaysOne) {
  const Error error = judge(kMembers, summed(), mismatch(), {none(1, Kind::refused), none(2, Kind::no_answer)}).value();
  EXPECT_STREQ(error.what(), mismatch().what());
}

TEST(FailureVerdict, LostRanksAreToldApart) {
  const Error error = after_failure({none(1, Kind::no_answer), none(2, Kind::refused), behind(3)}).value();
  EXPECT_EQ(error.code(), ErrorCode::peer_lost);
  EXPECT_EQ(error.ranks(), (Ranks{10, 20}));
  EXPECT_THAT(error.cause(), HasSubstr("rank 20 died or left the group; rank 10 gave no sign of life"));
}

TEST(FailureVerdict, TheSilenceOfAllIsTold) {
  MemberReply longer = none(1, Kind::no_answer);
  MemberReply shorter = none(3, Kind::unreachable);
  longer.silence = std::chrono::seconds(40);
  shorter.silence = std::chrono::milliseconds(23'900);
  const Error error = after_time_out({longer, in_step(2), shorter}).value();
  EXPECT_EQ(error.ranks(), (Ranks{10, 30}));
  EXPECT_THAT(error.cause(), HasSubstr("ranks 10, 30 gave no sign of life for 23 s (stopped, host down"));
}

TEST(FailureVerdict, ASilentRankWhoseProcessRunsIsSlow) {
  MemberReply slow = none(1, Kind::no_answer);
  slow.runs = true;
  auto error = after_time_out({slow, in_step(2), in_step(3)});
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::timeout);
  EXPECT_EQ(error->ranks(), Ranks{10});
  EXPECT_THAT(error->cause(), HasSubstr("rank 10 is too slow to answer before the deadline, but not stopped"));
  MemberReply absent = behind(3);
  absent.status->waits = false;
  error = after_time_out({slow, in_step(2), absent});
  ASSERT_TRUE(error);
  EXPECT_EQ(error->ranks(), (Ranks{10, 30}));
  EXPECT_THAT(error->cause(), HasSubstr("rank 30 did not call it before the deadline, but is alive; rank 10 is too"));
  error = after_time_out({slow, none(2, Kind::no_answer), in_step(3)});
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::peer_lost);
  EXPECT_EQ(error->ranks(), Ranks{20}) << "one is lost, and the other not";
}

TEST(FailureVerdict, ABusyRankAndOneThatHangsUpAreNotLost) {
  const Error error = after_time_out({none(1, Kind::busy), none(2, Kind::hung_up), in_step(3)}).value();
  EXPECT_EQ(error.code(), ErrorCode::timeout);
  EXPECT_TRUE(error.ranks().empty());
  EXPECT_FALSE(after_failure({none(1, Kind::busy), none(2, Kind::hung_up), in_step(3)}));
}

TEST(FailureVerdict, AnAnswerThatCannotBeReadCountsAsLost) {
  const Error error = after_time_out({none(1, Kind::answered), in_step(2), in_step(3)}).value();
  EXPECT_EQ(error.code(), ErrorCode::peer_lost);
  EXPECT_EQ(error.ranks(), Ranks{10});
}

TEST(FailureVerdict, ARankOutsideTheGroupIsNamedOnlyIfNoneIsLost) {
  EXPECT_EQ(after_time_out({none(1, Kind::failed), none(2, Kind::refused), in_step(3)})->ranks(), Ranks{20});
  const Error error = after_time_out({none(1, Kind::failed), in_step(2), in_step(3)}).value();
  EXPECT_EQ(error.code(), ErrorCode::peer_lost);
  EXPECT_EQ(error.ranks(), Ranks{10});
  EXPECT_THAT(error.cause(), HasSubstr("alive but not in the group"));
}

TEST(FailureVerdict, ARankThatLeftTheGroupAndThenEndedIsNotCalledAlive) {
  MemberReply ended = none(1, Kind::refused);
  ended.left = true;
  auto error = after_time_out({ended, in_step(2), in_step(3)});
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::peer_lost);
  EXPECT_EQ(error->ranks(), Ranks{10});
  EXPECT_EQ(error->cause(), "rank 10 left the group and has ended");
  error = after_time_out({ended, none(2, Kind::refused), in_step(3)});
  EXPECT_EQ(error->cause(), "rank 20 died or left the group; rank 10 left the group and has ended");
  EXPECT_EQ(error->ranks(), (Ranks{10, 20}));
}

TEST(FailureVerdict, RanksBehindExplainATimeOutButNoFailure) {
  const Error error = after_time_out({behind(1), in_step(2), behind(3)}).value();
  EXPECT_EQ(error.code(), ErrorCode::timeout);
  EXPECT_EQ(error.ranks(), (Ranks{10, 30}));
  EXPECT_FALSE(after_failure({behind(1), in_step(2), behind(3)})) << "asking again may find the one that died";
}

TEST(FailureVerdict, RanksThatWereNotAskedProveNothing) {
  const Error error = after_time_out({none(1, Kind::not_asked), in_step(2), in_step(3)}).value();
  EXPECT_EQ(error.code(), ErrorCode::timeout);
  EXPECT_TRUE(error.ranks().empty());
  EXPECT_THAT(error.cause(), HasSubstr("all ranks are alive"));
}

TEST(FailureVerdict, ATransferBlamesItsPeerByWorldRank) {
  Operation receive;
  receive.kind = OperationKind::recv;
  receive.root = 3;
  const Error error = judge(kMembers, receive, std::nullopt, {in_step(1), in_step(2), in_step(3)}).value();
  EXPECT_EQ(error.ranks(), Ranks{30});
  EXPECT_THAT(error.hint(), HasSubstr("same tag, element type and count"));
}

TEST(FailureVerdict, AFailureWhileAllAreInStepIsUnexplained) {
  EXPECT_FALSE(after_failure({in_step(1), in_step(2), in_step(3)}));
}

}  // namespace
}  // namespace ddp::collectives
