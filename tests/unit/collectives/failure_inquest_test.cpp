// Who is called lost, over made-up time and connections: 500 random rounds with members that are stopped, starved, busy
// or hang up, of which none may be accused, and with members that die in every way, of which each must be named in
// time.
#include "failure_inquest_fixture.hpp"
#include "support/sanitized.hpp"

namespace ddp::collectives::test {
namespace {

using Ranks = std::vector<int>;

class Dice {
 public:
  explicit Dice(unsigned seed) : random_(seed) {}
  int number(int from, int to) { return from + static_cast<int>(random_() % static_cast<unsigned>(to - from + 1)); }
  milliseconds time(milliseconds from, milliseconds to) {
    return milliseconds(number(static_cast<int>(from.count()), static_cast<int>(to.count())));
  }

 private:
  std::mt19937 random_;
};

/// Healthy, but not well: what DDP_PEER_TIMEOUT must have room for.
FakeMember troubled(Dice& dice, milliseconds peer_timeout) {
  const bool patient = peer_timeout >= seconds(30);
  FakeMember member;
  member.waits = dice.number(0, 1) == 0;
  switch (dice.number(0, 5)) {
    case 0: break;
    case 1:  // SIGSTOP for 2 s, now and then
      for (Time at = kStart + dice.time(milliseconds(0), seconds(5)); at < kStart + seconds(100);) {
        member.pauses.push_back({at, at + seconds(2)});
        at += seconds(2) + dice.time(seconds(1), seconds(9));
      }
      break;
    case 2: member.slowest = patient ? milliseconds(4000) : milliseconds(900); break;  // a twentieth of a core
    case 3:                                                                            // waits for memory
      for (Time at = kStart; at < kStart + seconds(100);) {
        const auto length = dice.time(milliseconds(10), patient ? seconds(6) : seconds(1));
        member.pauses.push_back({at, at + length});
        at += length + dice.time(milliseconds(1), seconds(1));
      }
      break;
    case 4: member.refused_for_being_busy = dice.number(0, 100); break;
    case 5:
      member.hung_up_on = dice.number(0, 30);
      member.losses = 20;
      break;
  }
  return member;
}

milliseconds any_peer_timeout(Dice& dice) {
  return std::array{seconds(5), seconds(10), seconds(30)}[dice.number(0, 2)];
}

std::string describe(unsigned seed, const std::optional<Error>& error) {
  std::ostringstream text;
  text << "round " << seed << ": " << (error ? error->what() : "nothing found");
  return text.str();
}

void expect_nobody_is_accused(unsigned seed) {
  Dice dice(seed);
  const milliseconds peer_timeout = any_peer_timeout(dice);
  std::vector<FakeMember> members(static_cast<std::size_t>(dice.number(2, 9)));
  for (FakeMember& member : members) member = troubled(dice, peer_timeout);
  Round round(members, peer_timeout, seed);
  // the rank that asks may itself be suspended, for however long
  if (dice.number(0, 3) == 0) {
    round.link.stall_at(kStart + dice.time(seconds(1), seconds(60)), dice.time(seconds(2), seconds(90)));
  }
  const auto error = round.wait(kStart + dice.time(seconds(1), seconds(90)));
  EXPECT_FALSE(error) << describe(seed, error);
}

TEST(FailureInquest, NobodyIsAccusedFalsely) {
  for (unsigned seed = 0; seed < ::ddp::test::cases(500); ++seed) expect_nobody_is_accused(seed);
}

// Three of the first 6,000 rounds: lost packets and hang-ups in turn, for three quarters of 5 s.
TEST(FailureInquest, ABadNetworkIsNotTakenForADeath) {
  for (const unsigned seed : {970U, 3607U, 4056U}) expect_nobody_is_accused(seed);
}

TEST(FailureInquest, EveryDeathIsNamedInTimeAndNobodyElse) {
  for (unsigned seed = 0; seed < ::ddp::test::cases(150); ++seed) {
    Dice dice(1000 + seed);
    const milliseconds peer_timeout = any_peer_timeout(dice);
    std::vector<FakeMember> members(static_cast<std::size_t>(dice.number(2, 9)));
    for (FakeMember& member : members) member = troubled(dice, peer_timeout);
    const int victim = dice.number(1, static_cast<int>(members.size()) - 1);
    for (int rank = 1; rank < victim; ++rank) members[static_cast<std::size_t>(rank)].waits = false;
    FakeMember& dead = members[static_cast<std::size_t>(victim)];
    dead = {};
    dead.death = static_cast<Death>(dice.number(1, 5));
    dead.dies = kStart + dice.time(milliseconds(0), seconds(60));
    Round round(members, peer_timeout, seed);
    const auto error = round.wait(dead.dies + 2 * peer_timeout);
    ASSERT_TRUE(error) << describe(seed, error);
    EXPECT_EQ(error->code(), ErrorCode::peer_lost) << describe(seed, error);
    EXPECT_EQ(error->ranks(), Ranks{victim}) << describe(seed, error);
    const bool names_death = error->cause().find("died or left") != std::string::npos;
    EXPECT_EQ(names_death, dead.death == Death::killed) << describe(seed, error);
    // those between that are slow themselves are asked one after the other
    const auto took = std::chrono::duration_cast<milliseconds>(round.link.now() - dead.dies);
    EXPECT_LE(took, peer_timeout + victim * seconds(3)) << describe(seed, error);
    if (victim == 1) {
      EXPECT_LE(took, peer_timeout) << describe(seed, error);
    }
  }
}

TEST(FailureInquest, WithABrokenConnectionAClosedPortIsProof) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    Dice dice(2000 + seed);
    const milliseconds peer_timeout = any_peer_timeout(dice);
    std::vector<FakeMember> members(static_cast<std::size_t>(dice.number(2, 9)));
    for (FakeMember& member : members) member = troubled(dice, peer_timeout);
    const int victim = dice.number(1, static_cast<int>(members.size()) - 1);
    FakeMember& dead = members[static_cast<std::size_t>(victim)];
    dead = {};
    dead.death = Death::killed;
    dead.dies = kStart + seconds(1);
    Round round(members, peer_timeout, seed);
    const auto error = round.fail(dead.dies);
    ASSERT_TRUE(error) << describe(seed, error);
    EXPECT_EQ(error->ranks(), Ranks{victim}) << describe(seed, error);
    EXPECT_LE(round.link.now() - dead.dies, seconds(2)) << describe(seed, error);
  }
}

TEST(FailureInquest, ARankThatLeavesTheGroupAndEndsIsNotCalledAlive) {
  std::vector<FakeMember> members(3);
  members[2].leaves = kStart + seconds(1);
  members[2].death = Death::killed;
  members[2].dies = members[2].leaves + milliseconds(300);
  Round ending(members, seconds(30), 1);
  auto error = ending.fail(members[2].leaves);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->cause(), "rank 2 left the group and has ended");
  EXPECT_EQ(error->ranks(), Ranks{2});
  EXPECT_LE(ending.link.now(), members[2].dies + seconds(1));
  members[2].dies = Time::max();
  Round staying(members, seconds(30), 1);
  error = staying.fail(members[2].leaves);
  ASSERT_TRUE(error);
  EXPECT_THAT(error->cause(), ::testing::HasSubstr("rank 2 is alive but not in the group"));
  EXPECT_LE(staying.link.now(), members[2].leaves + seconds(3));
}

TEST(FailureInquest, ABrokenConnectionAmongHealthyRanksIsNobodysDeath) {
  for (unsigned seed = 0; seed < 50; ++seed) {
    Dice dice(3000 + seed);
    std::vector<FakeMember> members(static_cast<std::size_t>(dice.number(2, 9)));
    for (FakeMember& member : members) member = troubled(dice, seconds(30));
    Round round(members, seconds(30), seed);
    const auto error = round.fail(kStart + seconds(1));
    EXPECT_FALSE(error) << describe(seed, error);
  }
}

TEST(FailureInquest, ARankThatComesBackBeforeTheDeadlineIsNotLost) {
  std::vector<FakeMember> members(3);
  const Time deadline = kStart + seconds(60);
  members[1].pauses.push_back({deadline - milliseconds(2400), deadline - milliseconds(400)});
  Round round(members, seconds(30), 1);
  const Error error = round.reach_deadline(deadline).value();
  EXPECT_EQ(error.code(), ErrorCode::timeout) << error.what();
  EXPECT_TRUE(error.ranks().empty()) << error.what();
  EXPECT_LE(round.link.now(), deadline);
}

TEST(FailureInquest, ARankThatIsSilentAtTheDeadlineIsLost) {
  std::vector<FakeMember> members(3);
  const Time deadline = kStart + seconds(8);
  members[2].death = Death::stopped;
  members[2].dies = kStart;
  Round round(members, seconds(30), 1);
  EXPECT_FALSE(round.wait(deadline - seconds(2)));
  const Error error = round.reach_deadline(deadline).value();
  EXPECT_EQ(error.code(), ErrorCode::peer_lost) << error.what();
  EXPECT_EQ(error.ranks(), Ranks{2});
  EXPECT_LE(round.link.now(), deadline);
}

// It has no processor for seconds. Of ranks on other nodes, those beside them say so.
TEST(FailureInquest, ARankThatOnlyLacksProcessorsAtTheDeadlineIsSlow) {
  const Time deadline = kStart + seconds(8);
  const auto verdict = [&](const std::vector<int>& nodes, bool runs, std::vector<int> running) {
    std::vector<FakeMember> members(3);
    members[2].pauses.push_back({deadline - seconds(3), deadline + seconds(3)});
    members[2].runs = runs;
    Round round(members, seconds(30), 1);
    round.place(nodes);
    round.link.say_running(std::move(running));
    const auto error = round.reach_deadline(deadline);
    EXPECT_LE(round.link.now(), deadline);
    EXPECT_TRUE(error && error->ranks() == Ranks{2});
    return error ? error->code() : ErrorCode::system;
  };
  EXPECT_EQ(verdict({}, true, {}), ErrorCode::timeout);
  EXPECT_EQ(verdict({}, false, {}), ErrorCode::peer_lost);
  EXPECT_EQ(verdict({0, 1, 1}, false, {2}), ErrorCode::timeout);
  EXPECT_EQ(verdict({0, 1, 1}, true, {}), ErrorCode::peer_lost) << "what runs here is another process";
  EXPECT_EQ(verdict({0, 0, 1}, true, {2}), ErrorCode::peer_lost) << "nobody of its node has said so";
}

// A host of eight ranks loses its power, or this one's link is cut: all are named together.
TEST(FailureInquest, AllThatAreLostTogetherAreNamedTogether) {
  for (const seconds peer_timeout : {seconds(6), seconds(30)}) {
    for (const auto& [from, to] : {std::pair{8, 16}, std::pair{1, 24}}) {
      std::vector<FakeMember> members(24);
      Ranks lost;
      for (int rank = from; rank < to; ++rank) {
        members[static_cast<std::size_t>(rank)].death = Death::vanished;
        members[static_cast<std::size_t>(rank)].dies = kStart + seconds(10);
        lost.push_back(rank);
      }
      for (int rank = 1; rank < from; ++rank) members[static_cast<std::size_t>(rank)].waits = false;
      Round round(members, peer_timeout, 1);
      const Error error = round.wait(kStart + seconds(100)).value();
      EXPECT_EQ(error.ranks(), lost) << error.what();
      EXPECT_LE(round.link.now(), kStart + seconds(10) + peer_timeout);
    }
  }
}

// It has sent what the root wants, left in good order and ended, while the root still waits for a slow rank.
TEST(FailureInquest, ARankThatMayHaveLeftIsGivenLong) {
  Operation gather = all_reduce();
  gather.kind = OperationKind::gather;
  gather.root = 0;
  std::vector<FakeMember> members(4);
  members[1].death = Death::killed;
  members[1].dies = kStart;
  EXPECT_FALSE(Round(members, seconds(30), 1, gather).wait(kStart + seconds(75)));
  Round endless(members, seconds(30), 1, gather);
  const Error error = endless.wait(kStart + seconds(600)).value();
  EXPECT_EQ(error.ranks(), Ranks{1});
  EXPECT_LE(endless.link.now(), kStart + seconds(130));
}

// While one is doubtful, others are asked again and again.
TEST(FailureInquest, ADeathDuringADoubtIsNamedInTime) {
  Operation gather = all_reduce();
  gather.kind = OperationKind::gather;
  gather.root = 0;
  std::vector<FakeMember> members(4);
  members[1].death = Death::killed;
  members[1].dies = kStart;
  members[3].death = Death::vanished;
  members[3].dies = kStart + seconds(20);
  Round round(members, seconds(30), 1, gather);
  const Error error = round.wait(kStart + seconds(600)).value();
  EXPECT_EQ(error.ranks(), Ranks{3});
  EXPECT_LE(round.link.now(), kStart + seconds(50));
}

}  // namespace
}  // namespace ddp::collectives::test
