// Who is called lost, over made-up time and connections: 500 random rounds with members that are stopped, starved, busy
// or hang up, of which none may be accused, and with members that die in every way, of which each must be named in
// time.
#include "collectives/failure_inquest.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <optional>
#include <random>
#include <sstream>

namespace ddp::collectives {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Kind = world::PeerReply::Kind;
using Time = LifeSigns::Time;
using Ranks = std::vector<int>;

constexpr Time kStart{std::chrono::hours(1)};

/// How a member dies.
enum class Death {
  none,
  killed,       ///< its port is closed
  vanished,     ///< its host does not answer
  unreachable,  ///< its host does not answer, and the network says so after a while
  stopped,      ///< its kernel takes connections, and it never answers
  replaced,     ///< another program has got its port, and hangs up
};

struct FakeMember {
  struct Pause {
    Time from;
    Time to;
  };
  std::vector<Pause> pauses;       ///< stopped, or waiting for memory
  milliseconds slowest{2};         ///< answer while it runs
  int losses = 0;                  ///< of 100 connections, so many need another second
  int refused_for_being_busy = 0;  ///< of 100 questions
  int hung_up_on = 0;              ///< of 100 questions
  bool waits = true;
  Time leaves = Time::max();  ///< the group
  Death death = Death::none;
  Time dies = Time::max();
};

Operation all_reduce() {
  Operation operation;
  operation.kind = OperationKind::all_reduce;
  operation.count = 100;
  operation.sequence = 5;
  return operation;
}

/// The first of some members asks the others.
class FakeLink final : public MemberLink {
 public:
  FakeLink(std::vector<FakeMember> others, Operation operation, unsigned seed)
      : operation_(std::move(operation)), others_(std::move(others)), open_(others_.size()) {
    random_.seed(seed);
  }

  Time now() const override { return now_; }
  void ask(int member) override { open_[static_cast<std::size_t>(member)] = reply_of(member, now_); }
  bool asking(int member) const override { return open_[static_cast<std::size_t>(member)].has_value(); }
  std::vector<MemberReply> wait(Time until) override {
    if (now_ < stall_ && stall_ <= until) {  // the host was suspended, and the deadline passed meanwhile
      for (auto& reply : open_) {
        if (reply && reply->at < Time::max()) reply->at += stall_length_;
      }
      now_ = stall_ + stall_length_;
      until = now_;
    }
    Time first = until;
    for (const auto& reply : open_) {
      if (reply) first = std::min(first, std::max(reply->at, now_));
    }
    now_ = std::max(now_, first);
    std::vector<MemberReply> replies;
    for (std::size_t member = 0; member < open_.size(); ++member) {
      if (!open_[member] || open_[member]->at > now_) continue;
      replies.push_back({.rank = static_cast<int>(member), .kind = open_[member]->kind, .status = {}, .silence = {}});
      if (replies.back().kind == Kind::answered) replies.back().status = status_of(others_[member]);
      open_[member].reset();
    }
    return replies;
  }

  void pass(Time to) { now_ = std::max(now_, to); }
  void stall_at(Time when, milliseconds length) {
    stall_ = when;
    stall_length_ = length;
  }

 private:
  struct Reply {
    Kind kind;
    Time at;
  };

  bool one_of_hundred(int chances) { return static_cast<int>(random_() % 100) < chances; }
  StatusAnswer status_of(const FakeMember& member) const {
    return {.last_issued = 5,
            .fingerprint = operation_.fingerprint(),
            .description = operation_.description(),
            .waits = member.waits,
            .verdict = {}};
  }
  Reply reply_of(int number, Time asked) {
    const FakeMember& member = others_[static_cast<std::size_t>(number)];
    Time at = asked;
    if (one_of_hundred(member.losses)) at += seconds(1);  // the kernel sends SYN again
    Kind kind = Kind::answered;
    if (one_of_hundred(member.hung_up_on)) kind = Kind::hung_up;
    if (one_of_hundred(member.refused_for_being_busy)) kind = Kind::busy;
    at += std::chrono::microseconds(random_() % static_cast<unsigned>(member.slowest.count() * 1000 + 1));
    for (const auto& pause : member.pauses) {
      if (at >= pause.from && at < pause.to) at = pause.to + milliseconds(1);
    }
    if (at < member.dies) return {at >= member.leaves ? Kind::failed : kind, at};
    const bool open = asked < member.dies;  // when it died
    switch (member.death) {
      case Death::none: break;
      case Death::killed: return open ? Reply{Kind::hung_up, member.dies} : Reply{Kind::refused, asked};
      case Death::unreachable: return {Kind::unreachable, asked + seconds(3)};
      case Death::replaced: return {Kind::hung_up, std::max(asked, member.dies)};
      case Death::vanished:
      case Death::stopped: break;
    }
    return {Kind::no_answer, Time::max()};
  }

  std::mt19937 random_;
  const Operation operation_;
  std::vector<FakeMember> others_;
  std::vector<std::optional<Reply>> open_;
  Time now_ = kStart;
  Time stall_ = Time::max();
  milliseconds stall_length_{};
};

/// A rank and those that it waits for, as GroupEngine and FailureDetector run them.
class Round {
 public:
  Round(std::vector<FakeMember> members, milliseconds peer_timeout, unsigned seed, Operation operation = all_reduce())
      : link(members, operation, seed),
        operation_(std::move(operation)),
        signs_(static_cast<int>(members.size()), peer_timeout),
        peer_timeout_(peer_timeout) {
    group_.name = "test";
    for (int rank = 0; rank < static_cast<int>(members.size()); ++rank) group_.global_ranks.push_back(rank);
    group_.peer_timeout = peer_timeout;
  }

  /// Looks after the others while the operation waits, until @p finished.
  std::optional<Error> wait(Time finished) {
    milliseconds interval = seconds(1);
    for (Time next = kStart + interval; next < finished; next = link.now() + interval) {
      link.pass(next);
      Inquest inquest(group_, operation_, {.kind = Occasion::Kind::waiting, .local_failure = {}, .end = {}}, signs_,
                      link);
      if (auto error = inquest.run([&] { return link.now() < finished; })) return error;
      interval = std::min(interval * 2, longest_probe_interval(peer_timeout_));
    }
    return std::nullopt;
  }
  std::optional<Error> fail(Time when) {
    link.pass(when);
    const Error failure = communication_failure(operation_, "ECONNRESET (104)");
    Inquest inquest(group_, operation_,
                    {.kind = Occasion::Kind::failure, .local_failure = failure, .end = when + peer_timeout_}, signs_,
                    link);
    return inquest.run([] { return true; });
  }
  std::optional<Error> reach_deadline(Time deadline) {
    link.pass(deadline - seconds(2));
    Inquest inquest(group_, operation_, {.kind = Occasion::Kind::deadline, .local_failure = {}, .end = deadline},
                    signs_, link);
    return inquest.run([] { return true; });
  }

  FakeLink link;

 private:
  GroupMembers group_;
  const Operation operation_;
  LifeSigns signs_;
  milliseconds peer_timeout_;
};

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

TEST(FailureInquest, NobodyIsAccusedFalsely) {
  for (unsigned seed = 0; seed < 300; ++seed) {
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
}

TEST(FailureInquest, EveryDeathIsNamedInTimeAndNobodyElse) {
  for (unsigned seed = 0; seed < 150; ++seed) {
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
  EXPECT_THAT(error->cause(), testing::HasSubstr("rank 2 is alive but not in the group"));
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
  const auto error = round.reach_deadline(deadline);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::timeout) << error->what();
  EXPECT_TRUE(error->ranks().empty()) << error->what();
  EXPECT_LE(round.link.now(), deadline);
}

TEST(FailureInquest, ARankThatIsSilentAtTheDeadlineIsLost) {
  std::vector<FakeMember> members(3);
  const Time deadline = kStart + seconds(8);
  members[2].death = Death::stopped;
  members[2].dies = kStart;
  Round round(members, seconds(30), 1);
  EXPECT_FALSE(round.wait(deadline - seconds(2)));
  const auto error = round.reach_deadline(deadline);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::peer_lost) << error->what();
  EXPECT_EQ(error->ranks(), Ranks{2});
  EXPECT_LE(round.link.now(), deadline);
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
      const auto error = round.wait(kStart + seconds(100));
      ASSERT_TRUE(error);
      EXPECT_EQ(error->ranks(), lost) << error->what();
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
  const auto error = endless.wait(kStart + seconds(600));
  ASSERT_TRUE(error);
  EXPECT_EQ(error->ranks(), Ranks{1});
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
  const auto error = round.wait(kStart + seconds(600));
  ASSERT_TRUE(error);
  EXPECT_EQ(error->ranks(), Ranks{3});
  EXPECT_LE(round.link.now(), kStart + seconds(50));
}

}  // namespace
}  // namespace ddp::collectives
