// The network between two hosts of a job is cut, with nothing said by either end: the ranks of each name those of the
// other in time, and go on without them. The hosts are network namespaces.
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include "base/unique_fd.hpp"
#include "multiproc/fault_rank.hpp"

namespace ddp::collectives::testing {
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
  TwoHosts(const TwoHosts&) = delete;
  TwoHosts& operator=(const TwoHosts&) = delete;
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
  /// Neither end hears anything from then on.
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
