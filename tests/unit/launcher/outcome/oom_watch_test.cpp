// OOM kills are seen in both versions of control groups, and nothing is claimed that the kernel did not count.
#include "outcome/oom_watch.hpp"

#include <sys/mman.h>

#include "unit/topology/fake_root.hpp"

namespace ddp::launcher {
namespace {

struct OomWatchTest : testing::Test {
  void vmstat(int kills) const {
    root_.write("proc/vmstat", "nr_free_pages 5\noom_kill " + std::to_string(kills) + "\noom_kill_x 99");
  }
  void version2(const std::string& path, int kills) const {
    root_.write("sys/fs/cgroup" + path + "/memory.events",
                "low 0\nhigh 3\nmax 7\noom 4\noom_kill " + std::to_string(kills) + "\noom_group_kill 8");
  }
  void version1(const std::string& path, int kills) const {
    root_.write("sys/fs/cgroup/memory" + path + "/memory.oom_control",
                "oom_kill_disable 0\nunder_oom 0\noom_kill " + std::to_string(kills));
  }
  std::string root() const { return root_.path(); }
  /// What a watch of a process in @p own says after a kill that this @p version of cgroups counts in @p path.
  std::string after_a_kill(const std::string& own, int version, const std::string& path) const {
    const auto count = [&](int kills) { version == 1 ? version1(path, kills) : version2(path, kills); };
    root_.write("proc/self/cgroup", own);
    count(0);
    const OomWatch watch{root()};
    count(1);
    return watch.explain();
  }

  topology::FakeRoot root_;
};

TEST_F(OomWatchTest, Version2WithItsLimit) {
  root_.write("proc/self/cgroup", "0::/slurm/job_7");
  root_.write("sys/fs/cgroup/slurm/job_7/memory.max", "4294967296");
  version2("/slurm/job_7", 2);
  vmstat(10);
  const OomWatch watch{root()};
  EXPECT_EQ(watch.explain(), "");
  version2("/slurm/job_7", 3);
  vmstat(11);
  EXPECT_EQ(watch.explain(),
            "the kernel's OOM killer ended a process of this job: the memory limit of its cgroup (/slurm/job_7) is "
            "4.0 GiB");
}

TEST_F(OomWatchTest, TheNearestLimitCounts) {
  root_.write("sys/fs/cgroup/slurm/job_7/step_0/task_0/memory.max", "max");
  root_.write("sys/fs/cgroup/slurm/job_7/memory.max", "536870912");
  root_.write("sys/fs/cgroup/slurm/memory.max", "1073741824");
  EXPECT_THAT(after_a_kill("0::/slurm/job_7/step_0/task_0", 2, "/slurm/job_7/step_0/task_0"),
              HasSubstr("the memory limit of its cgroup (/slurm/job_7) is 512.0 MiB"));
}

TEST_F(OomWatchTest, WithoutALimitTheNodeRanOut) {
  root_.write("sys/fs/cgroup/user.slice/memory.max", "max");
  EXPECT_THAT(after_a_kill("0::/user.slice", 2, "/user.slice"),
              HasSubstr("the node ran out of memory (cgroup /user.slice has no limit)"));
}

TEST_F(OomWatchTest, ACgroupWithoutAMemoryControllerIsCountedAboveIt) {
  root_.write("sys/fs/cgroup/a/memory.max", "1048576");
  EXPECT_THAT(after_a_kill("0::/a/b/c", 2, "/a"), HasSubstr("cgroup (/a) is 1.0 MiB"));
}

TEST_F(OomWatchTest, KillsOfOtherJobsAboveTheOwnCgroupAreNotThisJobs) {
  root_.write("proc/self/cgroup", "0::/slurm/job_7");
  version2("/slurm/job_7", 0);
  version2("/slurm", 0);
  vmstat(0);
  const OomWatch watch{root()};
  version2("/slurm", 1);
  vmstat(1);
  EXPECT_THAT(watch.explain(), HasSubstr("none that is counted in this job's cgroup (/slurm/job_7)"));
}

TEST_F(OomWatchTest, Version1WithItsLimit) {
  root_.write("sys/fs/cgroup/memory/slurm/uid_0/job_7/memory.limit_in_bytes", "2147483648");
  EXPECT_THAT(after_a_kill("5:cpuset:/\n4:memory:/slurm/uid_0/job_7\n1:name=systemd:/x\n0::/system.slice", 1,
                           "/slurm/uid_0/job_7"),
              HasSubstr("cgroup (/slurm/uid_0/job_7) is 2.0 GiB"));
}

TEST_F(OomWatchTest, Version1SaysNoLimitByALargeNumber) {
  root_.write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "9223372036854771712");
  EXPECT_THAT(after_a_kill("4:cpu,memory:/job", 1, "/job"), HasSubstr("cgroup /job has no limit"));
}

TEST_F(OomWatchTest, APathThatAContainerDoesNotShowIsFoundAtItsRoot) {
  for (const char* path : {"/docker/4f2a", "/../../other"}) {
    root_.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "1048576");
    EXPECT_THAT(after_a_kill("4:memory:" + std::string(path), 1, ""), HasSubstr("cgroup (/) is 1.0 MiB")) << path;
  }
}

TEST_F(OomWatchTest, TheMachinesCountAloneIsOnlyLikely) {
  root_.write("proc/self/cgroup", "0::/");
  vmstat(3);
  const OomWatch watch{root()};
  EXPECT_EQ(watch.explain(), "");
  vmstat(4);
  EXPECT_THAT(watch.explain(), HasSubstr("probably"));
}

TEST_F(OomWatchTest, AMachineThatTellsNothing) {
  const OomWatch watch{root()};
  EXPECT_EQ(watch.explain(), "");
  vmstat(5);  // no count to compare it with
  EXPECT_EQ(watch.explain(), "");
}

TEST_F(OomWatchTest, FilesThatMakeNoSense) {
  for (const char* text : {"", "0:", "::::", "0::", "0::relative", "memory", "4:memory", "4:memory:", "\n\n"}) {
    root_.write("proc/self/cgroup", text);
    EXPECT_EQ(OomWatch{root()}.explain(), "") << text;
  }
  root_.write("proc/self/cgroup", "0::/a");
  for (const char* count :
       {"oom_kill", "oom_kill x", "oom_kill -1", "oom_kill 99999999999999999999999", "oom_kill 1x"}) {
    root_.write("sys/fs/cgroup/a/memory.events", "oom_kill 0");
    const OomWatch watch{root()};
    root_.write("sys/fs/cgroup/a/memory.events", count);
    EXPECT_EQ(watch.explain(), "") << count;
  }
}

TEST_F(OomWatchTest, ACountThatShrinksOrAnotherCgroupIsNoKill) {
  root_.write("proc/self/cgroup", "0::/a");
  version2("/a", 5);
  version2("/b", 9);
  const OomWatch watch{root()};
  version2("/a", 4);
  EXPECT_EQ(watch.explain(), "");
  root_.write("proc/self/cgroup", "0::/b");
  EXPECT_EQ(watch.explain(), "");
}

/// A memory cgroup below this process's own, with a small limit; not there where that may not be made.
class SmallCgroup {
 public:
  SmallCgroup() {
    std::ifstream lines("/proc/self/cgroup");
    for (std::string line; std::getline(lines, line);) {
      const auto memory = line.find(":memory:");
      if (memory == std::string::npos) continue;
      folder_ = "/sys/fs/cgroup/memory" + line.substr(memory + 8) + "/ddp_oom_test_" + std::to_string(::getpid());
    }
    if (folder_.empty()) return;
    made_ = ::mkdir(folder_.c_str(), 0700) == 0;
    std::ofstream limit(folder_ + "/memory.limit_in_bytes");
    limit << (16 << 20);
    usable_ = made_ && static_cast<bool>(limit.flush());
  }
  SmallCgroup& operator=(SmallCgroup&&) = delete;
  ~SmallCgroup() {
    if (made_) ::rmdir(folder_.c_str());
  }
  bool usable() const { return usable_; }
  std::string processes() const { return folder_ + "/cgroup.procs"; }

 private:
  std::string folder_;
  bool made_ = false;
  bool usable_ = false;
};

TEST(OomWatch, ARealKillIsSeen) {
  const SmallCgroup cgroup;
  if (!cgroup.usable()) GTEST_SKIP() << "no memory cgroup of version 1 can be made here";
  int code = -1;
  // The watch is in the small cgroup, too, as ddprun and its workers are in one.
  const pid_t watcher = ::fork();
  ASSERT_GE(watcher, 0);
  if (watcher == 0) {
    std::ofstream processes(cgroup.processes());
    processes << ::getpid();
    if (!processes.flush()) ::_exit(77);
    const OomWatch watch;
    if (!watch.explain().empty()) ::_exit(3);
    const pid_t hungry = ::fork();
    if (hungry == 0) {
      // The kernel picks the largest; this asks to be the one in any case.
      std::ofstream("/proc/self/oom_score_adj") << 1000;
      constexpr std::size_t kBytes = std::size_t{64} << 20U;
      void* memory = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (memory != MAP_FAILED) std::memset(memory, 1, kBytes);
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(hungry, &status, 0);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) ::_exit(4);
    const std::string text = watch.explain();
    ::_exit(text.find("ended a process of this job") != std::string::npos &&
                    text.find("is 16.0 MiB") != std::string::npos
                ? 0
                : 5);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(watcher, &status, 0), watcher);
  code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
  if (code == 77) GTEST_SKIP() << "processes may not be moved into a cgroup here";
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace ddp::launcher
