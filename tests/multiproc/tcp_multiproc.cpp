// Ranks as processes over TCP, killed and stopped in every state of an operation: all survivors name them.
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "base/message.hpp"
#include "base/unique_fd.hpp"
#include "collectives/tcp/handshake.hpp"
#include "collectives/tcp/tcp_backend.hpp"

namespace ddp::collectives::tcp {
namespace {

constexpr int kMostRanks = 8;

/// What a rank reports in memory that it shares with the test.
struct Report {
  std::atomic<int> rounds{0};  ///< operations finished
  std::atomic<bool> ended{false};
  Outcome outcome = Outcome::running;
  int blamed = -1;  ///< the only rank named; -1 for none, -2 for several
  char cause[300] = {};
  char native[40] = {};
  unsigned char address[512] = {};
  std::atomic<std::size_t> address_bytes{0};
};

/// What a rank does over and over until it fails; @return whether @p operation is to be run by this rank.
using Round = std::function<bool(int rank, Operation& operation)>;

struct TcpProcesses : ::testing::Test {
  TcpProcesses()
      : reports_(static_cast<Report*>(
            ::mmap(nullptr, sizeof(Report) * kMostRanks, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))) {
    for (int rank = 0; rank < kMostRanks; ++rank) new (&reports_[rank]) Report;
  }
  ~TcpProcesses() override {
    for (const pid_t pid : pids_) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
    ::munmap(reports_, sizeof(Report) * kMostRanks);
  }

  int late_rank_ = -1;
  int limited_rank_ = -1;  ///< one more descriptor is all that it gets once it has all addresses
  milliseconds connect_timeout_{60'000};

  Report& report(int rank) { return reports_[rank]; }
  pid_t pid(int rank) const { return pids_[static_cast<std::size_t>(rank)]; }

  /// @param pause_after this many rounds, @p pausing sleeps without polling
  void start(int size, std::size_t bytes, const Round& round, milliseconds limit, int pausing = -1,
             int pause_after = 0) {
    for (int rank = 0; rank < size; ++rank) {
      const pid_t child = ::fork();
      if (child == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        be_rank(rank, size, bytes, round, limit, rank == pausing ? pause_after : -1);
        ::_exit(0);
      }
      pids_.push_back(child);
    }
  }

  void wait_until(const std::function<bool()>& holds, const char* what) {
    const Deadline deadline = Deadline::after(std::chrono::seconds(40));
    while (!holds()) {
      ASSERT_FALSE(deadline.expired()) << what;
      std::this_thread::sleep_for(milliseconds(1));
    }
  }

  /// All but @p victim end with peers_failed and its name. @return ms from now to the last one's end.
  void expect_named(int size, int victim) {
    const auto start = std::chrono::steady_clock::now();
    wait_until(
        [&] {
          for (int rank = 0; rank < size; ++rank) {
            if (rank != victim && !report(rank).ended) return false;
          }
          return true;
        },
        "the survivors' ends");
    const auto took = std::chrono::duration_cast<milliseconds>(std::chrono::steady_clock::now() - start);
    RecordProperty("ms", static_cast<int>(took.count()));
    for (int rank = 0; rank < size; ++rank) {
      if (rank == victim) continue;
      EXPECT_EQ(report(rank).outcome, Outcome::peers_failed) << "rank " << rank << ": " << report(rank).cause;
      EXPECT_EQ(report(rank).blamed, victim) << "rank " << rank << ": " << report(rank).cause;
    }
  }

 private:
  void be_rank(int rank, int size, std::size_t bytes, const Round& round, milliseconds limit, int pause_after) {
    Report& mine = report(rank);
    try {
      BackendConfig config;
      config.rank = rank;
      config.size = size;
      config.interface_address = "127.0.0.1";
      config.connect_timeout = connect_timeout_;
      const auto backend = make_backend(config);
      if (rank == late_rank_) std::this_thread::sleep_for(milliseconds(300));
      const Bytes address = backend->address();
      std::memcpy(mine.address, address.data(), address.size());
      mine.address_bytes = address.size();
      std::vector<Bytes> addresses;
      for (int other = 0; other < size; ++other) {
        while (report(other).address_bytes == 0) std::this_thread::sleep_for(milliseconds(1));
        const auto* const begin = reinterpret_cast<const std::byte*>(report(other).address);
        addresses.emplace_back(begin, begin + report(other).address_bytes);
      }
      backend->connect(addresses, Deadline::after(std::chrono::seconds(20)));
      if (rank == limited_rank_) leave_one_descriptor();
      std::vector<float> values(bytes / sizeof(float), 1.0F);
      for (std::uint64_t sequence = 1;; ++sequence) {
        if (mine.rounds == pause_after) std::this_thread::sleep_for(std::chrono::seconds(60));
        Operation operation;
        operation.kind = OperationKind::all_reduce;
        operation.reduce_op = ReduceOp::max;
        operation.count = values.size();
        operation.input = operation.output = values;
        operation.sequence = sequence;
        if (!round(rank, operation)) {
          std::this_thread::sleep_for(std::chrono::seconds(60));
          return;
        }
        if (operation.is_transfer()) operation.sequence = 0;
        Request& request = backend->init({&operation, 1}, Deadline::after(limit));
        request.post();
        Outcome outcome = Outcome::running;
        for (int polls = 0; (outcome = request.poll()) == Outcome::running; ++polls) {
          if (polls > 100) backend->rest(milliseconds(1));
        }
        if (outcome == Outcome::ok) {
          request.release();
          ++mine.rounds;
          continue;
        }
        const Failure failure = request.failure();
        mine.outcome = outcome;
        mine.blamed = failure.ranks.empty() ? -1 : failure.ranks.size() > 1 ? -2 : failure.ranks.front();
        std::strncpy(mine.cause, failure.cause.c_str(), sizeof mine.cause - 1);
        std::strncpy(mine.native, failure.native.c_str(), sizeof mine.native - 1);
        request.release();
        mine.ended = true;
        std::this_thread::sleep_for(std::chrono::seconds(60));  // others learn it without this rank's end
        return;
      }
    } catch (const std::exception& error) {
      std::strncpy(mine.cause, error.what(), sizeof mine.cause - 1);
      mine.ended = true;
    }
  }

  static void leave_one_descriptor() {
    const int next = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    ::close(next);
    const rlimit limit{static_cast<rlim_t>(next) + 1, static_cast<rlim_t>(next) + 1};
    if (next < 0 || ::setrlimit(RLIMIT_NOFILE, &limit) != 0) throw std::runtime_error("no limit of descriptors");
  }

  Report* reports_;
  std::vector<pid_t> pids_;
};

constexpr milliseconds kLong{120'000};

bool all_reduces(int /*rank*/, Operation& /*operation*/) { return true; }
bool broadcasts(int /*rank*/, Operation& operation) {
  operation.kind = OperationKind::broadcast;
  operation.root = 0;
  return true;
}
bool barriers(int /*rank*/, Operation& operation) {
  operation.kind = OperationKind::barrier;
  operation.count = 0;
  return true;
}

/// Sizes of all paths, and victims at the ends and in the middle of trees and chains.
TEST_F(TcpProcesses, KilledWhileDataMoves) {
  struct Case {
    Round round;
    std::size_t bytes;
    int victim;
  };
  for (const Case& one : {Case{all_reduces, 64, 0}, Case{all_reduces, 2'000'000, 2}, Case{broadcasts, 3'000'000, 1},
                          Case{broadcasts, 40, 4}, Case{barriers, 4, 3}}) {
    TcpProcesses_KilledWhileDataMoves_Test processes;
    processes.start(5, one.bytes, one.round, kLong);
    processes.wait_until([&] { return processes.report(one.victim).rounds > 20; }, "20 operations");
    ::kill(processes.pid(one.victim), SIGKILL);
    processes.expect_named(5, one.victim);
  }
}

/// It has not connected with anybody: its port is refused.
TEST_F(TcpProcesses, KilledBeforeItsFirstOperation) {
  start(4, 64, all_reduces, kLong, 2, 0);
  wait_until([&] { return report(2).address_bytes != 0; }, "the addresses");
  std::this_thread::sleep_for(milliseconds(200));
  ::kill(pid(2), SIGKILL);
  expect_named(4, 2);
}

/// Others wait for it, some of them for one another only.
TEST_F(TcpProcesses, KilledBetweenOperations) {
  start(6, 64, barriers, kLong, 5, 10);
  wait_until([&] { return report(5).rounds == 10; }, "10 operations");
  std::this_thread::sleep_for(milliseconds(100));
  ::kill(pid(5), SIGKILL);
  expect_named(6, 5);
}

TEST_F(TcpProcesses, KilledWhileAMessageIsAwaited) {
  const Round round = [](int rank, Operation& operation) {
    operation.kind = OperationKind::recv;
    operation.root = 1 - rank;
    return rank == 0;
  };
  start(2, 500'000, round, kLong);
  wait_until([&] { return report(1).address_bytes != 0; }, "the addresses");
  std::this_thread::sleep_for(milliseconds(200));
  ::kill(pid(1), SIGKILL);
  expect_named(2, 1);
}

/// A stopped process is not dead: operations end at their deadline, with a timeout; and when it goes on, it finds that
/// the others have gone on without it.
TEST_F(TcpProcesses, StoppedIsNotDead) {
  start(3, 1'000'000, all_reduces, milliseconds(2000));
  wait_until([&] { return report(1).rounds > 5; }, "5 operations");
  ::kill(pid(1), SIGSTOP);
  wait_until([&] { return report(0).ended && report(2).ended; }, "the others' deadlines");
  EXPECT_EQ(report(0).outcome, Outcome::timeout) << report(0).cause;
  EXPECT_EQ(report(2).outcome, Outcome::timeout) << report(2).cause;
  EXPECT_NE(std::string(report(0).cause).find("deadline"), std::string::npos) << report(0).cause;
  ::kill(pid(1), SIGCONT);
  wait_until([&] { return report(1).ended.load(); }, "the stopped rank's end");
  EXPECT_EQ(report(1).outcome, Outcome::timeout) << report(1).cause;
}

/// It is at fault, not the healthy rank that it does not reach; and the one that it has reached hears it.
TEST_F(TcpProcesses, ARankWithoutDescriptorsNamesItself) {
#ifdef DDP_ADDRESS_SANITIZER
  GTEST_SKIP() << "the sanitizer itself needs descriptors";
#endif
  limited_rank_ = 0;
  connect_timeout_ = milliseconds(500);
  start(3, 64, all_reduces, kLong);
  wait_until([&] { return report(0).ended.load(); }, "its own end");
  EXPECT_EQ(report(0).outcome, Outcome::peers_failed) << report(0).cause;
  EXPECT_EQ(report(0).blamed, 0) << report(0).cause;
  EXPECT_STREQ(report(0).native, "EMFILE (24)");
  EXPECT_NE(std::string(report(0).cause).find("ulimit -n"), std::string::npos) << report(0).cause;
  wait_until([&] { return report(1).ended || report(2).ended; }, "the end of the one that it has reached");
  Report& told = report(1).ended ? report(1) : report(2);
  EXPECT_EQ(told.outcome, Outcome::peers_failed) << told.cause;
  EXPECT_EQ(told.blamed, 0) << told.cause;
}

/// A thousand connections at a time, over and over: some say nothing, some the beginning of a hello or all of it, some
/// are reset at once.
[[noreturn]] void flood(std::uint16_t port) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  Bytes hello = stream::encode(kProtocol, {.version = kProtocol.version, .key = stream::random_bytes()});
  const Bytes opening = base::encode(Opening{.from = 0, .to = 1});
  hello.insert(hello.end(), opening.begin(), opening.end());
  const linger reset{.l_onoff = 1, .l_linger = 0};
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::vector<base::UniqueFd> held(1000);
  for (std::size_t count = 0;; ++count) {
    base::UniqueFd& one = held[count % held.size()];
    one.reset();
    one.reset(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    ::connect(one.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to);
    const std::size_t says = std::array<std::size_t, 4>{0, 20, hello.size(), 0}[count % 4];
    if (says != 0) ::send(one.get(), hello.data(), says, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (count % 4 == 3) ::setsockopt(one.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    if (count % 250 == 0) std::this_thread::sleep_for(milliseconds(10));
  }
}

/// Strangers fill the listeners of two ranks before the rank comes that connects to both, and go on. Where it may be
/// made so, the kernel's queue is so short that it turns away most of them, and the rank with them.
TEST_F(TcpProcesses, AFloodAtTheListenersDoesNotKeepRanksApart) {
  if (::unshare(CLONE_NEWNET) == 0) {
    const base::UniqueFd any(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    ifreq loopback{};
    std::strcpy(loopback.ifr_name, "lo");
    loopback.ifr_flags = IFF_UP;
    ASSERT_EQ(::ioctl(any.get(), SIOCSIFFLAGS, &loopback), 0);
    std::ofstream("/proc/sys/net/core/somaxconn") << 16;
  }
  late_rank_ = 0;
  start(3, 64, all_reduces, kLong);
  wait_until([&] { return report(1).address_bytes != 0 && report(2).address_bytes != 0; }, "the addresses");
  std::vector<pid_t> strangers;
  for (const int rank : {1, 2, 1}) {
    const auto* const address = reinterpret_cast<const std::byte*>(report(rank).address);
    const auto port = base::decode<RankRecord>({address, report(rank).address_bytes}).port;
    const pid_t pid = ::fork();
    if (pid == 0) flood(port);
    strangers.push_back(pid);
  }
  wait_until([&] { return report(0).rounds > 20 || report(0).ended; }, "20 operations");
  EXPECT_FALSE(report(0).ended) << report(0).cause;
  for (const pid_t pid : strangers) {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
}

}  // namespace
}  // namespace ddp::collectives::tcp
