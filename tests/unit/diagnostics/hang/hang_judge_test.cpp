// Who is missing and who waits for whom, over made-up facts.
#include "diagnostics/hang/hang_judge.hpp"

#include <ddp/error.hpp>

#include "diagnostics/hang/hang_report.hpp"
#include "diagnostics/hang/whereabouts.hpp"
#include "support/message_check.hpp"

namespace ddp::diagnostics {
namespace {

using flight::FlightPhase;
using flight::FlightView;

/// A process in a system call, which has called @p called collectives of the world and is in the last of them.
RankFacts rank_in(int rank, int world, std::uint64_t called, double age_s = 12) {
  RankFacts facts;
  facts.rank = rank;
  facts.world_size = world;
  facts.host = "n1";
  facts.state = 'S';
  facts.call = "futex";
  facts.steady = true;
  FlightView view;
  view.rank = rank;
  view.world_size = world;
  view.phase = FlightPhase::wired_up;
  std::vector<int> all(static_cast<std::size_t>(world));
  std::iota(all.begin(), all.end(), 0);
  view.groups.push_back(
      {.name = "world", .backend = "host", .rank = rank, .size = world, .members = all, .last_queued = called});
  view.last =
      FlightView::Call{.group = "world", .operation = "all_reduce", .sequence = called, .count = 5, .age_s = age_s};
  view.unfinished = {*view.last};
  facts.flight = view;
  return facts;
}

/// It has ended the last one, and does something else.
RankFacts rank_after(int rank, int world, std::uint64_t called, char state, const std::string& call, double cores = 0) {
  RankFacts facts = rank_in(rank, world, called);
  facts.flight->unfinished.clear();
  facts.flight->last->end_s = 12;
  facts.state = state;
  facts.call = call;
  facts.cores = cores;
  return facts;
}

JobObservation job_of(std::vector<RankFacts> ranks) {
  return join_hosts({{.host = "n1", .ranks = std::move(ranks)}}, true);
}

RankFacts plain(int rank, int world, char state, const std::string& call, double cores = 0, bool steady = true) {
  RankFacts facts;
  facts.rank = rank;
  facts.world_size = world;
  facts.host = "n1";
  facts.state = state;
  facts.call = call;
  facts.cores = cores;
  facts.steady = steady;
  return facts;
}

struct Case {
  const char* what;
  std::vector<RankFacts> ranks;
  HangAnswer answer;
  std::vector<int> culprits;
  const char* words;
};

TEST(HangJudge, NamesWhomAllOthersWaitFor) {
  const auto others = [](RankFacts odd) {
    std::vector<RankFacts> ranks{rank_in(0, 4, 34), rank_in(1, 4, 34), rank_in(2, 4, 34)};
    ranks.push_back(std::move(odd));
    return ranks;
  };
  RankFacts in_pair = rank_after(3, 4, 33, 'S', "futex");
  in_pair.flight->groups.push_back(
      {.name = "pair", .backend = "host", .rank = 1, .size = 2, .members = {2, 3}, .last_queued = 7});
  in_pair.flight->unfinished = {{.group = "pair", .operation = "barrier", .sequence = 7, .age_s = 12}};
  RankFacts other_kind = rank_in(3, 4, 34);
  other_kind.flight->unfinished[0].operation = "broadcast";
  RankFacts no_init = rank_after(3, 4, 0, 'S', "clock_nanosleep");
  no_init.flight.reset();
  no_init.links_libddp = true;
  const auto wiring = [](int rank) {
    RankFacts facts = rank_in(rank, 4, 0);
    facts.flight = FlightView{};
    facts.flight->phase = FlightPhase::wiring_up;
    facts.flight->phase_s = 30;
    return facts;
  };
  RankFacts sends = rank_in(0, 3, 1);
  sends.flight->unfinished = {
      {.group = "world", .operation = "recv", .sequence = 1, .transfer = true, .peer = 2, .age_s = 9}};
  RankFacts stopped_inside = rank_in(3, 4, 34);
  stopped_inside.state = 'T';

  const Case cases[]{
      {"asleep",
       others(rank_after(3, 4, 33, 'S', "clock_nanosleep")),
       HangAnswer::hangs,
       {3},
       "rank 3 is asleep in clock_nanosleep, last all_reduce #33 of group 'world'; ranks 0-2 wait for it in all_reduce "
       "#34 of group 'world', for 12 s"},
      {"stopped",
       others(rank_after(3, 4, 33, 'T', "")),
       HangAnswer::hangs,
       {3},
       "rank 3 is stopped, last all_reduce #33"},
      {"stopped in it", others(stopped_inside), HangAnswer::hangs, {3}, "rank 3 is stopped, in all_reduce #34"},
      {"spins",
       others(rank_after(3, 4, 33, 'R', "", 0.98)),
       HangAnswer::hangs,
       {3},
       "rank 3 is computing (98 % of a core)"},
      {"in I/O",
       others(rank_after(3, 4, 33, 'D', "read")),
       HangAnswer::hangs,
       {3},
       "rank 3 is blocked in read (D state)"},
      {"another group's operation", others(in_pair), HangAnswer::hangs, {3}, "rank 3 is in barrier #7 of group 'pair'"},
      {"another operation", others(other_kind), HangAnswer::hangs, {3}, "rank 3 called something else than the others"},
      {"gone",
       {rank_in(0, 4, 34), rank_in(1, 4, 34), rank_in(2, 4, 34)},
       HangAnswer::hangs,
       {3},
       "rank 3 has no process any more"},
      {"before World::init",
       {wiring(0), wiring(1), wiring(2), no_init},
       HangAnswer::hangs,
       {3},
       "has not called World::init"},
      {"a chain",
       {sends, rank_in(1, 3, 1), rank_after(2, 3, 0, 'S', "nanosleep")},
       HangAnswer::hangs,
       {2},
       "rank 2 is asleep"},
      {"the network",
       {rank_in(0, 2, 8), rank_in(1, 2, 8)},
       HangAnswer::hangs,
       {},
       "all ranks of all_reduce #8 of group 'world' have called it, and none ends it for 12 s"},
      {"a short wait",
       {rank_in(0, 2, 8, 0.2), rank_after(1, 2, 7, 'R', "", 1)},
       HangAnswer::nothing_hangs,
       {},
       "nothing hangs: the longest wait is 0.2 s"},
      {"no wait",
       {rank_after(0, 2, 8, 'R', "", 1), rank_after(1, 2, 8, 'S', "pause")},
       HangAnswer::nothing_hangs,
       {},
       "nothing hangs: no rank waits"},
  };
  for (const Case& each : cases) {
    const JobObservation job = job_of(each.ranks);
    const HangVerdict verdict = judge_hang(job, 5);
    EXPECT_EQ(verdict.answer, each.answer) << each.what << ": " << verdict.text;
    EXPECT_EQ(verdict.culprits, each.culprits) << each.what << ": " << verdict.text;
    EXPECT_THAT(verdict.text, HasSubstr(each.words)) << each.what;
    EXPECT_EQ(verdict.text.find('\n'), std::string::npos);
    EXPECT_FALSE(verdict.likely) << each.what;
  }
}

TEST(HangJudge, RanksOfHostsThatWereNotAskedAreNotGone) {
  JobObservation job = job_of({rank_in(0, 4, 34), rank_in(1, 4, 34)});
  job.whole = false;
  const HangVerdict verdict = judge_hang(job, 5);
  EXPECT_THAT(verdict.culprits, ElementsAre(2, 3));
  EXPECT_THAT(verdict.text, HasSubstr("ranks 2, 3 are not on the hosts that were asked"));
}

TEST(HangJudge, WithoutRecordersProcessesTell) {
  const auto with = [](RankFacts odd) {
    return std::vector{plain(0, 4, 'S', "futex"), plain(1, 4, 'S', "ppoll"), plain(2, 4, 'S', "recvfrom"),
                       std::move(odd)};
  };
  const auto loop = [](int rank) { return plain(rank, 4, 'R', "", 0.99); };
  RankFacts swapping = plain(3, 4, 'D', "");
  swapping.swaps = true;
  swapping.steady = false;  // it computes a little between the pages
  RankFacts unreadable = plain(3, 4, 'S', "");
  unreadable.kernel = "hrtimer_nanosleep";
  const Case cases[]{
      {"stopped", with(plain(3, 4, 'T', "")), HangAnswer::hangs, {3}, "rank 3 is stopped"},
      {"asleep",
       with(plain(3, 4, 'S', "clock_nanosleep")),
       HangAnswer::hangs,
       {3},
       "likely rank 3 is asleep in clock_nanosleep; ranks 0-2 wait"},
      {"asleep, by the kernel's function", with(unreadable), HangAnswer::hangs, {3}, "asleep in hrtimer_nanosleep"},
      {"computes", with(loop(3)), HangAnswer::hangs, {3}, "likely rank 3 is computing (99 % of a core)"},
      {"computes beside others",
       with(plain(3, 4, 'R', "", 0.1)),
       HangAnswer::hangs,
       {3},
       "likely rank 3 is computing (10 %"},
      {"swaps", with(swapping), HangAnswer::hangs, {3}, "constantly reads pages from disk"},
      {"gone",
       {plain(0, 3, 'S', "futex"), plain(2, 3, 'S', "futex")},
       HangAnswer::hangs,
       {1},
       "likely rank 1 has no process any more"},
      {"asleep where others poll",
       {loop(0), loop(1), loop(2), plain(3, 4, 'S', "pause")},
       HangAnswer::hangs,
       {3},
       "likely rank 3 is asleep in pause"},
      {"all wait",
       {plain(0, 2, 'S', "futex"), plain(1, 2, 'S', "futex")},
       HangAnswer::cannot_tell,
       {},
       "cannot tell: all ranks wait"},
      {"all compute", {loop(0), loop(1)}, HangAnswer::nothing_hangs, {}, "nothing hangs, as far as processes show"},
      {"one moves",
       {plain(0, 2, 'S', "futex"), plain(1, 2, 'S', "read", 0.1, false)},
       HangAnswer::nothing_hangs,
       {},
       "some change"},
      {"none", {}, HangAnswer::cannot_tell, {}, "no rank was found"},
  };
  for (const Case& each : cases) {
    const HangVerdict verdict = judge_hang(job_of(each.ranks), 5);
    EXPECT_EQ(verdict.answer, each.answer) << each.what << ": " << verdict.text;
    EXPECT_EQ(verdict.culprits, each.culprits) << each.what << ": " << verdict.text;
    EXPECT_THAT(verdict.text, HasSubstr(each.words)) << each.what;
  }
}

TEST(Whereabouts, AProgramOfTorchIsNotTakenForOneOfLibddps) {
  RankFacts rank = rank_after(1, 2, 0, 'S', "futex");
  rank.flight.reset();
  rank.links_libddp = true;
  EXPECT_THAT(whereabouts(rank).text, HasSubstr("has not called World::init"));
  for (const FlightSource source : {FlightSource::torch, FlightSource::torch_unread}) {
    rank.flight_source = source;
    EXPECT_EQ(whereabouts(rank).text, "waiting in futex");
  }
}

TEST(Whereabouts, GroupsOfTorchHaveTorchsNames) {
  EXPECT_EQ(describe_group("torch.0.db047faf"), "torch's default group");
  EXPECT_EQ(describe_group("torch.12.db047faf"), "torch's group '12'");
  EXPECT_EQ(describe_group("torch.a.b.db047faf"), "torch's group 'a.b'");
  for (const char* own : {"world", "ddp.0.world", "torch.0", "torch..db047faf", "torch.0.db04", ""})
    EXPECT_EQ(describe_group(own), std::string("group '") + own + "'");
}

TEST(HangReport, FoldsRanksAtTheSamePlace) {
  JobObservation job = job_of({rank_in(0, 5, 34, 12), rank_in(1, 5, 34, 11), rank_in(2, 5, 34, 12),
                               rank_after(3, 5, 33, 'T', ""), rank_in(4, 5, 34, 12)});
  const HangVerdict verdict = judge_hang(job, 5);
  job.stacks.add({.ranks = {3}, .tool = "gdb", .text = "thread\n  #0 main"}, kMaxJobStackBytes);
  const std::string text = hang_text(job, verdict);
  EXPECT_EQ(text,
            "rank 3 is stopped, last all_reduce #33 of group 'world'; ranks 0-2, 4 wait for it in all_reduce #34 of "
            "group 'world', for 12 s\n"
            "  ranks 0-2, 4 (n1): in all_reduce #34 of group 'world' for 12 s\n"
            "  rank 3 (n1): stopped; last all_reduce #33 of group 'world', ended 12 s ago\n"
            "  all_reduce #34 of group 'world': ranks 0-2, 4 wait for rank 3, for 12 s\n"
            "  rank 3 (gdb):\n    thread\n      #0 main\n");
  const std::string json = hang_json(job, verdict);
  EXPECT_THAT(json, AllOf(HasSubstr("\"schema\": \"ddp-info-status/1\""), HasSubstr("\"hangs\": \"yes\"")));
}

TEST(HangFacts, ArriveAsTheyWereSent) {
  RankFacts odd = rank_after(3, 4, 33, 'D', "read", 0.25);
  odd.swaps = odd.links_libddp = true;
  HostFacts sent{.host = "n7", .ranks = {rank_in(0, 4, 34), odd, plain(2, 4, 'S', "futex")}, .notes = {"note"}};
  sent.stacks.add({.ranks = {0, 3}, .tool = "gdb", .text = "#0 main"}, kMaxNodeStackBytes);
  sent.stacks.note("n7", "no py-spy");
  const Bytes bytes = encode(sent);
  const HostFacts come = decode_host_facts(bytes);
  EXPECT_EQ(encode(come), bytes);
  const auto report = [](const HostFacts& facts) {
    const JobObservation job = join_hosts({facts}, true);
    const HangVerdict verdict = judge_hang(job, 5);
    return hang_json(job, verdict);
  };
  EXPECT_EQ(report(come), report(sent));
  tests::check_message<HostFacts>();
}

TEST(HangJudge, WhereAllComputeNcclSaysWhoIsBehind) {
  std::vector<RankFacts> ranks;
  for (int rank = 0; rank < 3; ++rank) {
    RankFacts facts;
    facts.rank = rank;
    facts.world_size = 3;
    facts.pid = 100 + rank;
    facts.state = 'R';
    facts.cores = 1;
    ranks.push_back(facts);
  }
  const NcclTrouble trouble{.text = "communicator 0xabc of 3 ranks: ranks have called different operations",
                            .behind = {101}};
  const JobObservation job =
      join_hosts({{.host = "n1", .ranks = ranks, .nccl = {trouble}}, {.host = "n2", .nccl = {trouble}}}, true);
  EXPECT_EQ(job.nccl.size(), 1U) << "both hosts were told the same";
  const HangVerdict verdict = judge_hang(job, 5);
  EXPECT_EQ(verdict.answer, HangAnswer::hangs);
  EXPECT_TRUE(verdict.likely);
  EXPECT_THAT(verdict.culprits, ElementsAre(1));
  EXPECT_THAT(verdict.text,
              testing::StartsWith("likely rank 1 is computing (100 % of a core); NCCL: communicator 0xabc"));
  EXPECT_THAT(hang_text(job, verdict), HasSubstr("\n  NCCL: communicator 0xabc of 3 ranks"));
  EXPECT_THAT(hang_json(job, verdict), HasSubstr("\"ranks\": [\n        1\n      ]"));
}

}  // namespace
}  // namespace ddp::diagnostics
