// Stacks of real processes, by tools that work, fail, hang and talk without end.
#include <poll.h>
#include <sys/prctl.h>

#include "base/process.hpp"
#include "base/socket.hpp"
#include "diagnostics/stacks/proc_stack.hpp"
#include "diagnostics/stacks/stack_gatherer.hpp"

namespace ddp::diagnostics {
namespace {

/// A child that sleeps, by now, under a name of its own.
base::ChildProcess sleeper() {
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_NAME, "sleeper");
    for (;;) ::pause();
  }
  const Deadline limit = Deadline::after(60s);
  for (std::string state; state.find("(sleeper) S") == std::string::npos && !limit.expired();) {
    std::this_thread::sleep_for(1ms);
    std::ifstream stat{fmt::format("/proc/{}/stat", pid)};
    std::getline(stat, state);
  }
  return base::ChildProcess{pid};
}

struct StackGathererTest : testing::Test {
  StackGathererTest() {
    std::string path = testing::TempDir() + "/stacks_XXXXXX";
    folder_ = ::mkdtemp(path.data());
  }
  ~StackGathererTest() override {
    while (::waitpid(-1, nullptr, 0) > 0) {  // tools that took long to die
    }
    std::filesystem::remove_all(folder_);
  }

  std::string script(const std::string& name, const std::string& text) {
    const std::string path = folder_ + "/" + name;
    std::ofstream{path} << "#!/bin/sh\n" << text << "\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
  }
  static StackTools tools(std::string gdb, std::chrono::milliseconds limit = 60s) {
    return {.py_spy = "",
            .gdb = std::move(gdb),
            .environment = {"PATH=/bin:/usr/bin"},
            .proc = "/proc",
            .tool_limit = limit};
  }
  /// Of as many processes as @p ranks.
  RankStacks gather(std::vector<int> ranks, const StackTools& with, Deadline deadline = Deadline::after(60s)) {
    std::vector<base::ChildProcess> processes;
    std::vector<RankProcess> named;
    for (const int rank : ranks) {
      processes.push_back(sleeper());
      named.push_back({.rank = rank, .pid = processes.back().pid()});
    }
    StackGatherer gatherer{named, with, "n0", deadline};
    EXPECT_TRUE(base::wait_for(gatherer.fd(), POLLIN, Deadline::after(120s)));
    return gatherer.take().value_or(RankStacks{});
  }

  std::string folder_;
};

TEST_F(StackGathererTest, EqualStacksAreOneGroup) {
  const std::string gdb = script("gdb", R"(
case "$*" in *"attach "[0-9]*"thread apply all"*) ;; *) exit 1 ;; esac
echo "Thread 1 (LWP $$ \"x\"):"; echo "#0  0x$$ in stuck () at a.c:1")");
  const RankStacks stacks = gather({0, 1, 2, 5, 6, 7, 8, 9, 10, 11, 12}, tools(gdb));
  EXPECT_THAT(stacks.groups, ElementsAre(StackGroup{.ranks = {0, 1, 2, 5, 6, 7, 8, 9, 10, 11, 12},
                                                    .tool = "gdb",
                                                    .text = "thread \"x\"\n  #0  stuck () at a.c:1"}));
  EXPECT_THAT(stacks.notes, IsEmpty());
}

TEST_F(StackGathererTest, WithoutToolsTheKernelIsAsked) {
  const RankStacks stacks = gather({3}, tools(""));
  ASSERT_THAT(stacks.groups, SizeIs(1));
  EXPECT_EQ(stacks.groups[0].tool, "proc");
  EXPECT_THAT(stacks.groups[0].text, AllOf(HasSubstr("\"sleeper\""), HasSubstr("state S (sleeping)")));
  ASSERT_THAT(stacks.notes, SizeIs(1));
  EXPECT_THAT(stacks.notes[0].text, HasSubstr("gdb is not installed"));
  EXPECT_THAT(stacks.notes[0].hosts, ElementsAre("n0"));
}

TEST_F(StackGathererTest, WhatOnlyRootReadsIsLeftOut) {
  const base::ChildProcess process = sleeper();
  const std::string task = fmt::format("{0}/proc/{1}/task/{1}", folder_, process.pid());
  std::filesystem::create_directories(task + "/stack");  // opens, and cannot be read
  std::ofstream{task + "/status"} << "Name:\tsleeper\nState:\tS (sleeping)\n";
  StackTools none = tools("");
  none.proc = folder_ + "/proc";
  StackGatherer gatherer{{{.rank = 4, .pid = process.pid()}}, none, "n0", Deadline::after(30s)};
  std::optional<RankStacks> stacks;
  while (!(stacks = gatherer.take())) ::usleep(1'000);
  ASSERT_THAT(stacks->groups, SizeIs(1));
  EXPECT_EQ(stacks->groups[0].text, "thread \"sleeper\"\n  state S (sleeping)");
  ASSERT_THAT(stacks->notes, SizeIs(1));
  EXPECT_THAT(stacks->notes[0].text, HasSubstr("gdb is not installed"));
}

TEST_F(StackGathererTest, AToolThatFailsGivesItsReason) {
  const RankStacks stacks =
      gather({0, 1}, tools(script("gdb", "echo 'ptrace: Operation not permitted.' >&2; echo noise")));
  ASSERT_FALSE(stacks.groups.empty());
  EXPECT_EQ(stacks.groups[0].tool, "proc");
  ASSERT_THAT(stacks.notes, SizeIs(1));
  EXPECT_THAT(stacks.notes[0].text, HasSubstr("ptrace: Operation not permitted."));
}

TEST_F(StackGathererTest, AToolThatHangsIsKilledWithAllItsProcesses) {
  const std::string gdb = script("gdb", fmt::format("sleep 1000 & echo $! >>{}/pids; sleep 1000", folder_));
  const auto begin = Deadline::Clock::now();
  const RankStacks stacks = gather({0, 1}, tools(gdb, 500ms));
  EXPECT_LT(Deadline::Clock::now() - begin, 60s);
  ASSERT_FALSE(stacks.groups.empty());
  EXPECT_EQ(stacks.groups[0].tool, "proc");
  ASSERT_FALSE(stacks.notes.empty());
  EXPECT_THAT(stacks.notes[0].text, HasSubstr("gdb did not end in time"));
  std::ifstream pids{folder_ + "/pids"};
  for (pid_t pid = 0; pids >> pid;) {
    const Deadline deadline = Deadline::after(30s);
    const auto runs = [pid] { return stack_of_proc("/proc", pid).find("(sleeping)") != std::string::npos; };
    while (runs() && !deadline.expired()) ::usleep(10'000);
    EXPECT_FALSE(runs()) << pid;
  }
}

TEST_F(StackGathererTest, AToolThatTalksWithoutEndIsKilled) {
  const std::string gdb =
      script("gdb", "echo 'Thread 1 (LWP 1 \"x\"):'; while :; do echo \"#$((i += 1)) frame\"; done");
  const RankStacks stacks = gather({0}, tools(gdb, 1s));
  ASSERT_THAT(stacks.groups, SizeIs(1));
  EXPECT_LE(stacks.groups[0].text.size(), std::size_t{128} << 10U);
}

TEST_F(StackGathererTest, AToolThatCannotBeExecutedIsNamed) {
  const std::string path = folder_ + "/gdb";
  std::ofstream{path} << "no program";
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  const RankStacks stacks = gather({0}, tools(path));
  ASSERT_FALSE(stacks.notes.empty());
  EXPECT_THAT(stacks.notes[0].text, HasSubstr("gdb could not be started: "));
}

TEST_F(StackGathererTest, PastTheDeadlineThereIsWhatThereIs) {
  const base::ChildProcess process = sleeper();
  StackGatherer gatherer{
      {{.rank = 4, .pid = process.pid()}}, tools(script("gdb", "sleep 1000")), "n0", Deadline::after(2s)};
  ::poll(nullptr, 0, gatherer.deadline().poll_timeout_ms());
  const auto stacks = gatherer.take();
  ASSERT_TRUE(stacks);
  ASSERT_THAT(stacks->groups, SizeIs(1));
  EXPECT_THAT(stacks->groups[0].ranks, ElementsAre(4));
}

TEST_F(StackGathererTest, AProcessThatIsGoneHasNoStack) {
  StackGatherer gatherer{{{.rank = 1, .pid = 2'000'000'000}}, tools(""), "n0", Deadline::after(60s)};
  ASSERT_TRUE(base::wait_for(gatherer.fd(), POLLIN, Deadline::after(60s)));
  EXPECT_THAT(gatherer.take()->groups,
              ElementsAre(StackGroup{.ranks = {1}, .tool = "none", .text = "(could not be read)"}));
}

TEST_F(StackGathererTest, WithoutRanksItIsReadyAtOnce) { EXPECT_TRUE(gather({}, tools("")).empty()); }

// What a wrapper script's rank waits for is its only child.
TEST_F(StackGathererTest, AShellThatWaitsStandsForItsChild) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  const std::string wrapper = script("wrapper", "sleep 1000 & echo $! >&9; wait");
  const pid_t pid = ::fork();
  if (pid == 0) {
    ::setpgid(0, 0);
    ::dup2(ends[1], 9);
    ::execl(wrapper.c_str(), wrapper.c_str(), nullptr);
    ::_exit(1);
  }
  const base::ChildProcess process{pid};
  char text[32]{};
  ASSERT_GT(::read(ends[0], text, sizeof text - 1), 0);
  EXPECT_EQ(below_shells("/proc", pid), std::stoi(text));
  EXPECT_EQ(below_shells("/proc", ::getpid()), ::getpid());
  ::kill(-pid, SIGKILL);
  ::close(ends[0]);
  ::close(ends[1]);
}

}  // namespace

// Equal stacks are one, in the order of ranks, and all together are bounded.

namespace {

TEST(RankStacks, EqualOnesAreJoined) {
  RankStacks stacks;
  stacks.add({.ranks = {4}, .tool = "gdb", .text = "b"}, 100);
  stacks.add({.ranks = {2, 3}, .tool = "gdb", .text = "a"}, 100);
  stacks.add({.ranks = {0, 1, 7}, .tool = "gdb", .text = "a"}, 100);
  stacks.add({.ranks = {6}, .tool = "proc", .text = "a"}, 100);
  stacks.add({.tool = "gdb", .text = "c"}, 100);
  EXPECT_THAT(stacks.groups, ElementsAre(StackGroup{.ranks = {0, 1, 2, 3, 7}, .tool = "gdb", .text = "a"},
                                         StackGroup{.ranks = {4}, .tool = "gdb", .text = "b"},
                                         StackGroup{.ranks = {6}, .tool = "proc", .text = "a"}));
}

TEST(RankStacks, WhatIsTooLongLosesItsText) {
  RankStacks stacks;
  for (int rank = 0; rank < 1000; ++rank)
    stacks.add({.ranks = {rank}, .tool = "gdb", .text = std::to_string(rank) + std::string(1000, 'x')}, 10'000);
  std::size_t bytes = 0;
  for (const StackGroup& group : stacks.groups) bytes += group.text.size();
  EXPECT_LE(bytes, 10'100U);
  ASSERT_THAT(stacks.groups, SizeIs(10));
  EXPECT_THAT(stacks.groups.back().ranks, SizeIs(991));
}

TEST(RankStacks, NotesNameTheirHostsOnce) {
  RankStacks stacks;
  stacks.note("n0", "no gdb");
  stacks.note("n1", "no gdb");
  stacks.note("n1", "no gdb");
  stacks.note("n1", "other");
  EXPECT_THAT(stacks.notes, ElementsAre(StackNote{.hosts = {"n0", "n1"}, .text = "no gdb"},
                                        StackNote{.hosts = {"n1"}, .text = "other"}));
  for (int i = 0; i < 1000; ++i) stacks.note("n0", std::to_string(i));
  EXPECT_THAT(stacks.notes, SizeIs(kMaxStackNotes));
}

}  // namespace

}  // namespace ddp::diagnostics
