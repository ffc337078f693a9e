// Ranks among processes, and what /proc says of real ones.
#include "diagnostics/hang/observe.hpp"

#include <sys/prctl.h>

#include <ddp/error.hpp>

#include "base/process.hpp"
#include "diagnostics/hang/proc_file.hpp"
#include "diagnostics/hang/standstill_watch.hpp"
#include "diagnostics/hang/whereabouts.hpp"

namespace ddp::diagnostics {
namespace {

using Variables = std::map<std::string, std::string>;

Variables torchrun(int rank, const std::string& port, int world = 2) {
  return {{"RANK", std::to_string(rank)},
          {"WORLD_SIZE", std::to_string(world)},
          {"LOCAL_WORLD_SIZE", "2"},
          {"MASTER_ADDR", "n1"},
          {"MASTER_PORT", port}};
}
Variables slurm(int rank, const std::string& step) {
  return {{"SLURM_JOB_ID", "17"},
          {"SLURM_STEP_ID", step},
          {"SLURM_PROCID", std::to_string(rank)},
          {"SLURM_STEP_NUM_TASKS", "2"}};
}
KnownProcess process(pid_t pid, pid_t parent, const Variables& variables, uid_t user = 1000) {
  auto identity = RankIdentity::of(variables);
  std::string step = identity ? identity->slurm_step : "";
  return {.pid = pid, .parent = parent, .user = user, .identity = std::move(identity), .slurm_step = std::move(step)};
}

// 10: shell, with 11: ddprun (a task of a step itself), 12: its attempt, ranks 20 (with 21 below it) and 30.
// 40, 41: another job. 50, 51: a step of Slurm. 60: another user's. 70: no rank.
ProcessTable table() {
  return ProcessTable{{process(10, 1, {}), process(11, 10, slurm(0, "3")), process(12, 11, slurm(0, "3")),
                       process(20, 12, torchrun(0, "100")), process(21, 20, torchrun(0, "100")),
                       process(30, 12, torchrun(1, "100")), process(40, 1, torchrun(0, "200")),
                       process(41, 1, torchrun(1, "200")), process(50, 2, slurm(0, "0")), process(51, 2, slurm(1, "0")),
                       process(60, 1, torchrun(0, "300"), 1001), process(70, 1, {})}};
}

std::vector<pid_t> pids(const StatusTarget& target, uid_t user = 1000) {
  std::vector<pid_t> found;
  for (const FoundRank& each : table().ranks_of(target, user)) found.push_back(each.pid);
  return found;
}
std::string refusal(const StatusTarget& target, uid_t user = 1000) {
  try {
    table().ranks_of(target, user);
  } catch (const Error& error) {
    return error.what();
  }
  return "found";
}

TEST(ProcessTable, FindsTheJobOfAProcess) {
  for (const pid_t pid : {10, 11, 12, 20, 21, 30}) EXPECT_THAT(pids({.pid = pid}), ElementsAre(20, 30)) << pid;
  EXPECT_THAT(pids({.pid = 41}), ElementsAre(40, 41));
  EXPECT_THAT(pids({.pid = 51}), ElementsAre(50, 51));
  EXPECT_THAT(pids({.pid = 70}), ElementsAre(70));
  EXPECT_THAT(pids({.slurm_job = "17"}), ElementsAre(50, 51));
  EXPECT_THAT(pids({.slurm_job = "17.0"}), ElementsAre(50, 51));
  EXPECT_TRUE(pids({.slurm_job = "18"}).empty());
  EXPECT_THAT(pids({.slurm_job = {}}, 1001), ElementsAre(60));
  EXPECT_THAT(pids({.pid = 60}, 0), ElementsAre(60)) << "root sees all";
}

TEST(ProcessTable, SaysWhatItCannotTell) {
  EXPECT_THAT(refusal({.pid = 99}), HasSubstr("there is no process 99"));
  EXPECT_THAT(refusal({.pid = 60}), HasSubstr("process 60 belongs to"));
  EXPECT_THAT(refusal({.slurm_job = {}}), HasSubstr("there are 3 jobs"));
  EXPECT_THAT(refusal({.slurm_job = {}}, 5), HasSubstr("no ranks"));
  EXPECT_FALSE(RankIdentity::of({{"SLURM_JOB_ID", "1"}, {"SLURM_STEP_ID", "4294967291"}, {"SLURM_PROCID", "0"}}))
      << "a batch script";
}

/// A child that does @p work for ever.
template <class Work>
base::ChildProcess child_that(Work work) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    for (;;) work();
  }
  return base::ChildProcess{pid};
}

RankFacts observe(pid_t pid) {
  RankIdentity identity;
  identity.rank = 0;
  identity.world_size = 1;
  return observe_ranks("/proc", "n1", {{.pid = pid, .identity = identity}},
                       {.count = 3, .pause = std::chrono::milliseconds(100)})
      .ranks.at(0);
}

/// Looks until the child is where it goes to, which a busy machine delays.
Place settled(pid_t pid, Place expected) {
  const Deadline deadline = Deadline::after(std::chrono::seconds(60));
  Place place = place_of_process(observe(pid));
  while (place != expected && !deadline.expired()) place = place_of_process(observe(pid));
  return place;
}

TEST(Observe, TellsWhatRealProcessesDo) {
  const auto sleeper = child_that([] { ::sleep(1000); });
  const auto pauser = child_that([] { ::pause(); });
  auto stopped = child_that([] { ::pause(); });
  auto ended = child_that([] { ::_exit(0); });
  stopped.signal(SIGSTOP);
  EXPECT_EQ(settled(sleeper.pid(), Place::asleep), Place::asleep);
  EXPECT_EQ(settled(pauser.pid(), Place::asleep), Place::asleep);
  EXPECT_EQ(settled(stopped.pid(), Place::stopped), Place::stopped);
  EXPECT_EQ(settled(ended.pid(), Place::exited), Place::exited);
  EXPECT_TRUE(observe(sleeper.pid()).steady);
  EXPECT_EQ(place_of_process(observe(2'000'000'000)), Place::exited);
}

TEST(RankProgress, IsCountedByOperationsWhereThereAreAnyElseByWorkAndItsFiles) {
  const RankProgress in_groups{.alive = true, .in_groups = true, .operations = 7, .ticks = 0, .io_bytes = 0};
  RankProgress later = in_groups;
  later.ticks = later.io_bytes = 1'000'000;
  EXPECT_FALSE(has_progressed(in_groups, later, 1)) << "it polls while it waits";
  ++later.operations;
  EXPECT_TRUE(has_progressed(in_groups, later, 1));
  const RankProgress plain{.alive = true, .in_groups = false, .operations = 0, .ticks = 500, .io_bytes = 1'000'000};
  const auto after = [&](std::uint64_t ticks, std::uint64_t bytes) {
    RankProgress then = plain;
    then.ticks += ticks;
    then.io_bytes += bytes;
    return has_progressed(plain, then, 10);
  };
  EXPECT_FALSE(after(10, 10'000)) << "a watchdog that wakes up";
  EXPECT_TRUE(after(200, 0));
  EXPECT_TRUE(after(0, 10'000'000));
  EXPECT_TRUE(after(-1, 0)) << "a process below it has ended";
  EXPECT_TRUE(has_progressed(plain, {}, 10));
  EXPECT_FALSE(has_progressed({}, {}, 10));
}

TEST(RankProgress, CountsWhatAProcessBelowDoes) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    const pid_t below = ::fork();
    if (below == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (;;) continue;
    }
    for (;;) ::pause();
  }
  const base::ChildProcess parent{pid};
  const RankProgress first = read_progress("/proc", pid);
  EXPECT_TRUE(first.alive);
  const Deadline deadline = Deadline::after(std::chrono::seconds(60));
  while (read_progress("/proc", pid).ticks < first.ticks + 10 && !deadline.expired()) ::usleep(10'000);
  EXPECT_GE(read_progress("/proc", pid).ticks, first.ticks + 10);
  EXPECT_LT(read_stat("/proc", pid).ticks, 10U);
}

}  // namespace
}  // namespace ddp::diagnostics
