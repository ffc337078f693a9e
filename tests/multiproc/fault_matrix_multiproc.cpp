// A rank is killed or stopped at each point of a group's life, as a leader and as a member of its memory domain, with
// all ranks in one domain and in two that TCP joins: all survivors name that rank only, and continue in a new group.
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#include "base/unique_fd.hpp"
#include "multiproc/fault_rank.hpp"

namespace ddp::collectives::testing {
namespace {

constexpr std::array<PointRow, 15> kPoints{
    {{Point::before_connecting, "before_connecting", Kinds::all, true, true, false},
     {Point::connecting, "connecting", Kinds::all, true, true, false},
     {Point::idle, "idle", Kinds::all, true, true, false},
     {Point::before_post, "before_post", Kinds::all, true, true, false},
     {Point::waiting, "waiting", Kinds::mutual, true, true, false},
     {Point::before_show, "before_show", Kinds::sums, true, true, true},
     {Point::before_reduce, "before_reduce", Kinds::sums, true, true, true},
     {Point::in_copy_out, "in_copy_out", Kinds::sums, true, true, true},
     {Point::between_stages, "between_stages", Kinds::bytes, true, true, true},
     {Point::in_transfer, "in_transfer", Kinds::bytes, true, true, true},
     {Point::polled, "polled", Kinds::all, true, true, true},
     {Point::closing, "closing", Kinds::mutual, true, true, false},
     {Point::leaves, "leaves", Kinds::mutual, true, false, false},
     {Point::aborts, "aborts", Kinds::sums, true, false, false},
     {Point::slow, "slow", Kinds::collectives, false, true, false}}};

bool fits(Kinds kinds, OperationKind kind) {
  switch (kinds) {
    case Kinds::sums: return kind == OperationKind::all_reduce;
    case Kinds::mutual:
      return kind == OperationKind::all_reduce || kind == OperationKind::all_gather || kind == OperationKind::barrier ||
             kind == OperationKind::reduce_scatter || kind == OperationKind::all_to_all;
    case Kinds::bytes: return kind != OperationKind::barrier;
    case Kinds::collectives: return kind != OperationKind::recv;  // each message waits for its neighbour alone
    default: return true;
  }
}

/// By hand, for tables: DDP_FAULT_ROUNDS with different operations each, one case at a time, so that nothing disturbs
/// it.
int rounds() {
  const char* const text = std::getenv("DDP_FAULT_ROUNDS");
  return text == nullptr ? 1 : std::atoi(text);
}

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
  Job& operator=(Job&&) = delete;
  ~Job() {
    for (const pid_t pid : pids_) {
      if (pid == 0) continue;
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
    ::munmap(table_, sizeof(Table));
  }

  /// Of the survivors, and of a stopped victim, once the others are through with the first group.
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

  /// When the last survivor knew, counted from the fault, or from its call if that came later; -1 where none had to.
  struct Times {
    double same_domain_ms = -1;
    double others_ms = -1;
  };
  Times check() const {
    const Point point = case_.at.point;
    Times times;
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
      // a member cannot know which rank is missing if its leader is stopped before it can say so
      if (!unknown || row.blamed != 0) {
        EXPECT_EQ(row.blamed, 1U << static_cast<unsigned>(case_.victim)) << where;
      }
      const auto from = std::max(steady_clock::duration(table_->fell), row.called);
      const double took = std::chrono::duration<double, std::milli>(row.at - from).count();
      const bool near = rank % case_.domains == case_.victim % case_.domains;
      double& longest = near ? times.same_domain_ms : times.others_ms;
      longest = std::max(longest, took);
    }
    return times;
  }

 private:
  Case case_;
  Table* table_;
  std::vector<pid_t> pids_;
};

/// The cases of each point, with other operations in each round.
class Cases {
 public:
  Cases(int signal, int round)
      : signal_(signal), next_(static_cast<std::size_t>(round)), polled_(static_cast<std::size_t>(round)) {
    for (const PointRow& at : kPoints) {
      if (signal == SIGKILL ? !at.killed : !at.stopped) continue;
      for (const int victim : {0, 3}) {
        for (const int domains : {1, 2, kRanks}) {
          if (reached(at.point, victim, domains)) add(at, victim, domains);
        }
      }
    }
    // with what is already there, all operations
    const PointRow& polled = kPoints[static_cast<std::size_t>(Point::polled)];
    while (signal == SIGKILL && polled_ < static_cast<std::size_t>(round) + kExchangeKinds.size()) {
      add(polled, polled_ % 2 == 0 ? 0 : 3, 1);
    }
  }
  const std::vector<Case>& all() const { return cases_; }

 private:
  static bool reached(Point point, int victim, int domains) {
    if (point == Point::between_stages) return domains == 2;
    if (point == Point::in_transfer) return domains == kRanks || (domains == 2 && victim == 0);
    if (point == Point::polled) return true;
    return domains < kRanks && !(kSanitized && domains == 1);  // for their time; between has both parts
  }
  void add(const PointRow& at, int victim, int domains) {
    std::size_t& next = at.point == Point::polled ? polled_ : next_;
    OperationKind kind{};
    do {
      kind = kExchangeKinds[next++ % kExchangeKinds.size()];
    } while (!fits(at.kinds, kind));
    const int polls = 1 + static_cast<int>(next * 7 % 40);
    cases_.push_back({.at = at, .signal = signal_, .victim = victim, .domains = domains, .kind = kind, .polls = polls});
  }

  int signal_;
  std::size_t next_;
  std::size_t polled_;  ///< the same, for Point::polled
  std::vector<Case> cases_;
};

/// How long one domain, or the others, took to notice each fault at a point.
struct Measured {
  std::vector<double> same_domain_ms;
  std::vector<double> others_ms;
};

/// @param width cases in parallel.
void run_all(const std::vector<Case>& cases, std::size_t width, std::map<Point, Measured>& measured) {
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
      const Job::Times took = job->check();
      std::printf("%-60s %8.1f %8.1f ms\n", which.name().c_str(), took.same_domain_ms, took.others_ms);
      if (took.same_domain_ms >= 0) measured[which.at.point].same_domain_ms.push_back(took.same_domain_ms);
      if (took.others_ms >= 0) measured[which.at.point].others_ms.push_back(took.others_ms);
    }
  }
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values.empty() ? 0 : values[values.size() / 2];
}
double most(const std::vector<double>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

/// Of deaths: all times at once, and a row per point.
Measured summary(const std::map<Point, Measured>& measured) {
  Measured all;
  std::printf(
      "| falls | times | same domain: median | max | other domains: median | max |\n|:--|--:|--:|--:|--:|--:|\n");
  for (const auto& [point, times] : measured) {
    if (point > Point::polled) continue;  // no rank was killed in an operation
    const auto& [near, far] = times;
    std::printf("| %s | %zu | %.0f | %.0f | %.0f | %.0f |\n", kPoints[static_cast<std::size_t>(point)].name,
                std::max(near.size(), far.size()), median(near), most(near), median(far), most(far));
    all.same_domain_ms.insert(all.same_domain_ms.end(), near.begin(), near.end());
    all.others_ms.insert(all.others_ms.end(), far.begin(), far.end());
  }
  return all;
}

TEST(FaultMatrix, KilledIsNamedByAllAtOnce) {
  std::map<Point, Measured> measured;
  for (int round = 0; round < rounds(); ++round) {
    run_all(Cases(SIGKILL, round).all(), rounds() > 1 ? 1 : 8, measured);
  }
  const Measured all = summary(measured);
  RecordProperty("same_domain_median_ms", std::to_string(median(all.same_domain_ms)));
  RecordProperty("same_domain_most_ms", std::to_string(most(all.same_domain_ms)));
  RecordProperty("others_median_ms", std::to_string(median(all.others_ms)));
  RecordProperty("others_most_ms", std::to_string(most(all.others_ms)));
  // On an idle machine all are below 100 ms within a domain, and below a second between domains. Here 32 processes and
  // the tests of other stages share it.
  EXPECT_LT(median(all.same_domain_ms), kSanitized ? 5000 : 500);
  EXPECT_LT(median(all.others_ms), kSanitized ? 5000 : 1000);
  EXPECT_LT(most(all.same_domain_ms), 10'000);
  EXPECT_LT(most(all.others_ms), 10'000);
}

TEST(FaultMatrix, StoppedIsNamedByAllAtTheDeadlineAndToldFromSlow) {
  std::map<Point, Measured> at_the_deadline;
  for (int round = 0; round < rounds(); ++round) {
    run_all(Cases(SIGSTOP, round).all(), kSanitized ? 10 : 20, at_the_deadline);
  }
}

}  // namespace

// The network between two hosts of a job is cut silently: the ranks on each host name those on the other in time, and
// continue without them. The hosts are network namespaces.

namespace {

constexpr std::chrono::seconds kPeerTimeout{5};

/// This process's network namespace and another one, joined by a pair of interfaces.
class TwoHosts {
 public:
  TwoHosts() {
    if (::unshare(CLONE_NEWNET) != 0) return;
    other_ = ::fork();
    if (other_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::unshare(CLONE_NEWNET);
      for (;;) ::pause();
    }
    const auto ino = [](const std::string& process) {
      struct stat status {};
      return ::stat(("/proc/" + process + "/ns/net").c_str(), &status) == 0 ? status.st_ino : 0;
    };
    const std::string pid = std::to_string(other_);
    for (const Deadline deadline = Deadline::after(std::chrono::seconds(20)); ino(pid) == ino("self");) {
      if (deadline.expired()) return;
      std::this_thread::sleep_for(milliseconds(1));
    }
    joined_ = run("ip link set lo up && ip link add here type veth peer name there netns " + pid +
                  " && ip address add 10.79.0.1/24 dev here && ip link set here up") &&
              there("ip link set lo up && ip address add 10.79.0.2/24 dev there && ip link set there up");
  }
  TwoHosts& operator=(TwoHosts&&) = delete;
  ~TwoHosts() {
    if (other_ <= 0) return;
    ::kill(other_, SIGKILL);
    ::waitpid(other_, nullptr, 0);
  }

  bool joined() const { return joined_; }
  void enter_other() const {
    const base::UniqueFd space(::open(("/proc/" + std::to_string(other_) + "/ns/net").c_str(), O_RDONLY | O_CLOEXEC));
    if (::setns(space.get(), CLONE_NEWNET) != 0) ::_exit(1);
  }
  /// From then on, neither end hears anything.
  bool cut() const { return there("ip link set there down"); }

 private:
  static bool run(const std::string& command) { return ::system((command + " 2>/dev/null").c_str()) == 0; }
  bool there(const std::string& command) const {
    return run("nsenter -t " + std::to_string(other_) + " -n sh -c '" + command + "'");
  }
  pid_t other_ = -1;
  bool joined_ = false;
};

TEST(CutLink, RanksOfBothHostsNameThoseOfTheOther) {
  const TwoHosts hosts;
  if (!hosts.joined()) GTEST_SKIP() << "needs root, ip and nsenter";
  const Case job{.at = {Point::nowhere, "cut", Kinds::sums, false, false, false},
                 .signal = SIGKILL,
                 .victim = -1,
                 .domains = 2,
                 .addresses = {"10.79.0.1", "10.79.0.2"},
                 .peer_timeout = kPeerTimeout};
  Table& table =
      *new (::mmap(nullptr, sizeof(Table), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) Table{};
  std::vector<pid_t> pids;
  for (int rank = 0; rank < kRanks; ++rank) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      ::setenv("DDP_PEER_TIMEOUT", std::to_string(kPeerTimeout.count()).c_str(), 1);
      if (rank % 2 == 1) hosts.enter_other();
      Rank(table, job, rank).run();
      ::_exit(0);
    }
    pids.push_back(pid);
  }
  const auto wait_for_all = [&](auto&& holds, const char* what) {
    const Deadline deadline = Deadline::after(std::chrono::seconds(60));
    while (!std::all_of(table.rows.begin(), table.rows.end(), holds)) {
      ASSERT_FALSE(deadline.expired()) << what;
      std::this_thread::sleep_for(milliseconds(1));
    }
  };
  wait_for_all([](const Row& row) { return row.rounds > 20 || row.failed; }, "20 operations");
  const auto begin = steady_clock::now().time_since_epoch();
  ASSERT_TRUE(hosts.cut());
  wait_for_all([](const Row& row) { return row.failed.load(); }, "the ends of the group");
  for (const pid_t pid : pids) ::waitpid(pid, nullptr, 0);
  for (int rank = 0; rank < kRanks; ++rank) {
    const Row& row = table.rows[static_cast<std::size_t>(rank)];
    EXPECT_EQ(row.code, ErrorCode::peer_lost) << row.text.data();
    EXPECT_EQ(row.blamed, rank % 2 == 0 ? 0b1010U : 0b0101U) << row.text.data();
    EXPECT_NE(std::string(row.text.data()).find(rank % 2 == 0 ? "10.79.0.2" : "10.79.0.1"), std::string::npos)
        << row.text.data();
    EXPECT_STREQ(row.trouble.data(), "");
    const auto took = std::chrono::duration<double>(row.at - begin);
    std::printf("rank %d: %.1f s: %s\n", rank, took.count(), row.text.data());
    EXPECT_LT(took, kPeerTimeout * 3 / 2);  // 5.1 s, with 16 other processes on two processors, too
  }
  ::munmap(&table, sizeof table);
}

}  // namespace

}  // namespace ddp::collectives::testing
