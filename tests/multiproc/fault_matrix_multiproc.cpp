// A rank is killed or stopped at each point of a group's life, as a leader and as a member of its memory domain, with
// all ranks in one domain and in two that TCP joins: all survivors name it and nobody else, and go on in a new group.
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <utility>

#include <gtest/gtest.h>

#include "multiproc/fault_rank.hpp"

namespace ddp::collectives::testing {
namespace {

constexpr std::array<PointRow, 12> kPoints{{{Point::before_connecting, "before_connecting", true, true},
                                            {Point::connecting, "connecting", true, true},
                                            {Point::idle, "idle", true, true},
                                            {Point::before_post, "before_post", true, true},
                                            {Point::waiting, "waiting", true, true},
                                            {Point::before_show, "before_show", true, true},
                                            {Point::before_reduce, "before_reduce", true, true},
                                            {Point::in_copy_out, "in_copy_out", true, true},
                                            {Point::closing, "closing", true, true},
                                            {Point::leaves, "leaves", true, false},
                                            {Point::aborts, "aborts", true, false},
                                            {Point::slow, "slow", false, true}}};

class Job {
 public:
  explicit Job(const Case& of)
      : case_(of),
        table_(new (::mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
                   Table{}) {
    for (int rank = 0; rank < kRanks; ++rank) {
      const pid_t pid = ::fork();
      if (pid == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        Rank(*table_, case_, rank).run();
        ::_exit(0);
      }
      pids_.push_back(pid);
    }
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;
  ~Job() {
    for (const pid_t pid : pids_) {
      if (pid == 0) continue;
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
    ::munmap(table_, sizeof(Table));
  }

  /// Of the survivors, and of a victim that was stopped, once the others are through with the first group.
  bool ended() {
    bool all = true;
    bool others = true;
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank != case_.victim) others = others && table_->rows[static_cast<std::size_t>(rank)].failed;
    }
    const pid_t victim = pids_[static_cast<std::size_t>(case_.victim)];
    if (others && case_.signal == SIGSTOP && victim != 0) ::kill(victim, SIGCONT);
    for (pid_t& pid : pids_) {
      if (pid != 0 && ::waitpid(pid, nullptr, WNOHANG) == pid) pid = 0;
      all = all && pid == 0;
    }
    return all;
  }

  /// @return ms from the fall to the last survivor's knowledge; -1 if nobody had to know.
  double check() const {
    const Point point = case_.at.point;
    double longest = -1;
    for (int rank = 0; rank < kRanks; ++rank) {
      const Row& row = table_->rows[static_cast<std::size_t>(rank)];
      const auto where = case_.name() + ", rank " + std::to_string(rank) + ": " + row.text.data();
      EXPECT_STREQ(row.trouble.data(), "") << where;
      if (rank == case_.victim) continue;
      EXPECT_TRUE(row.failed) << where;
      if (point == Point::closing) {
        EXPECT_STREQ(row.text.data(), "") << where;
        continue;
      }
      const bool unknown = case_.signal == SIGSTOP && point <= Point::connecting;
      const bool timeout = point == Point::slow || (unknown && row.code == ErrorCode::timeout);
      EXPECT_EQ(row.code, timeout ? ErrorCode::timeout : ErrorCode::peer_lost) << where;
      // a member cannot tell who is missing where its leader is stopped before it can say so
      if (!unknown || row.blamed != 0) {
        EXPECT_EQ(row.blamed, 1U << static_cast<unsigned>(case_.victim)) << where;
      }
      longest = std::max(
          longest, std::chrono::duration<double, std::milli>(row.at - steady_clock::duration(table_->fell)).count());
    }
    return longest;
  }

 private:
  Case case_;
  Table* table_;
  std::vector<pid_t> pids_;
};

std::vector<Case> cases_of(int signal) {
  std::vector<Case> cases;
  for (const PointRow& at : kPoints) {
    if (signal == SIGKILL ? !at.killed : !at.stopped) continue;
    for (const int victim : {0, 3}) {
      for (const int domains : {1, 2}) {
        if (kSanitized && domains == 1) continue;  // for their time; between has both parts
        cases.push_back({.at = at, .signal = signal, .victim = victim, .domains = domains});
      }
    }
  }
  return cases;
}

/// @param width cases at a time. @return the longest ms of one that all have to end in.
double run_all(const std::vector<Case>& cases, std::size_t width) {
  double longest = 0;
  for (std::size_t first = 0; first < cases.size(); first += width) {
    std::vector<std::pair<Case, std::unique_ptr<Job>>> jobs;
    for (std::size_t i = first; i < std::min(first + width, cases.size()); ++i) {
      jobs.emplace_back(cases[i], std::make_unique<Job>(cases[i]));
    }
    const Deadline deadline = Deadline::after(std::chrono::seconds(60));
    for (auto& [which, job] : jobs) {
      while (!job->ended() && !deadline.expired()) {
        for (auto& other : jobs) other.second->ended();
        std::this_thread::sleep_for(milliseconds(2));
      }
      EXPECT_TRUE(job->ended()) << which.name() << " hangs";
      const double took = job->check();
      std::printf("%-40s %8.1f ms\n", which.name().c_str(), took);
      if (which.at.point < Point::leaves) longest = std::max(longest, took);
    }
  }
  return longest;
}

TEST(FaultMatrix, KilledIsNamedByAllAtOnce) {
  // the target is 100 ms within a node, a second between nodes, on a machine with nothing else to do
  EXPECT_LT(run_all(cases_of(SIGKILL), 8), 20'000);
}

TEST(FaultMatrix, StoppedIsNamedByAllAtTheDeadlineAndToldFromSlow) { run_all(cases_of(SIGSTOP), kSanitized ? 10 : 20); }

}  // namespace
}  // namespace ddp::collectives::testing
