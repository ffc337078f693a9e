// The shared-memory backend with one process per rank: ranks are killed and stopped at each point of an operation, and
// the others must end with the same cause, in time.
#include <dirent.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "base/process.hpp"
#include "base/unique_fd.hpp"
#include "multiproc/shm_processes.hpp"
#include "support/forbid.hpp"
#include "support/sanitized.hpp"

namespace ddp::collectives::shm {
namespace {

using test::forbid;

struct Fall {
  const char* name;
  Phase phase;
  bool idle;  ///< between operations instead
  int victim;
  std::size_t count;
};
void PrintTo(const Fall& fall, std::ostream* out) { *out << fall.name; }

class ShmFall : public ShmProcesses, public ::testing::WithParamInterface<Fall> {
 protected:
  /// Runs all_reduces until one fails. The victim dies in the third.
  Ended work(int rank, int signal, std::chrono::milliseconds limit) {
    const Fall& fall = GetParam();
    struct Context {
      ShmFall* test;
      Phase phase;
      int signal;
      bool armed;
    } context{this, fall.phase, signal, false};
    Settings settings;
    settings.hook.context = &context;
    settings.hook.call = [](Phase phase, void* opaque) {
      auto& of = *static_cast<Context*>(opaque);
      if (of.armed && phase == of.phase) {
        of.armed = false;
        of.test->fall(of.signal);
      }
    };
    backend_ = connected(0, {0, 1, 2}, rank, settings);
    for (std::uint64_t i = 1;; ++i) {
      if (rank == fall.victim && i == 3) {
        if (fall.idle) this->fall(signal);
        context.armed = true;
      }
      const Ended ended = all_reduce(*backend_, fall.count, i, Deadline::after(limit));
      if (ended.outcome != Outcome::ok) return ended;
    }
  }
  std::unique_ptr<Backend> backend_;
};

TEST_P(ShmFall, KilledIsNamedByAllAndTheOthersGoOn) {
  const int victim = GetParam().victim;
  start([&](int rank) {
    const Ended ended = work(rank, SIGKILL, std::chrono::seconds(60));
    EXPECT_EQ(ended.outcome, Outcome::peers_failed) << to_string(ended.outcome);
    EXPECT_EQ(ended.failure.ranks, std::vector<int>{victim}) << ended.failure.cause;
    backend_->close(testing::soon());
    backend_.reset();
    std::vector<int> others{0, 1, 2};
    others.erase(others.begin() + victim);
    const auto next = connected(1, others, rank);
    EXPECT_EQ(all_reduce(*next, 1000, 1, testing::soon()).outcome, Outcome::ok);
    next->close(testing::soon());
  });
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank != victim) expect_success(rank);
  }
}

constexpr int kDeadlineMs = ::ddp::test::kSanitized ? 3000 : 400;  // the others may be this late

TEST_P(ShmFall, StoppedIsNamedAtTheDeadlineAndDoesNoHarmLater) {
  const int victim = GetParam().victim;
  start([&](int rank) {
    const Ended ended = work(rank, SIGSTOP, std::chrono::milliseconds(rank == victim ? 600'000 : kDeadlineMs));
    if (rank == victim) return;  // it was resumed
    EXPECT_EQ(ended.outcome, Outcome::timeout) << to_string(ended.outcome) << ended.failure.cause;
    const std::vector<int>& blamed = ended.failure.ranks;  // on a busy machine, other ranks may be late, too
    EXPECT_EQ(std::count(blamed.begin(), blamed.end(), victim), 1) << ended.failure.cause;
    std::vector<int> others{0, 1, 2};
    others.erase(others.begin() + victim);
    const auto next = connected(1, others, rank);
    for (std::uint64_t i = 1; i <= 50; ++i) {
      EXPECT_EQ(all_reduce(*next, 30'000, i, testing::soon()).outcome, Outcome::ok);
      if (i == 10) ++counter(1);  // the victim is resumed now
    }
    next->close(testing::soon());
  });
  wait_until([&] { return counter(1) == kRanks - 1; });
  ::kill(children_[static_cast<std::size_t>(victim)], SIGCONT);
  for (int rank = 0; rank < kRanks; ++rank) {
    if (rank != victim) expect_success(rank);
  }
}

INSTANTIATE_TEST_SUITE_P(Shm, ShmFall,
                         ::testing::Values(Fall{"MemberBeforeCopySmall", Phase::before_copy, false, 1, 100},
                                           Fall{"MemberBeforeShowSmall", Phase::before_show, false, 1, 100},
                                           Fall{"LeaderBeforeShowLarge", Phase::before_show, false, 0, 300'000},
                                           Fall{"MemberBeforeReduceLarge", Phase::before_reduce, false, 2, 300'000},
                                           Fall{"LeaderInCopyOutLarge", Phase::in_copy_out, false, 0, 300'000},
                                           Fall{"MemberInCopyOutLarge", Phase::in_copy_out, false, 1, 300'000},
                                           Fall{"LeaderIdle", Phase::connecting, true, 0, 100},
                                           Fall{"MemberIdle", Phase::connecting, true, 2, 300'000}),
                         [](const auto& fall) { return std::string(fall.param.name); });

TEST_F(ShmProcesses, DeathsWhileTheyMeetAreNamed) {
  for (const int victim : {0, 1}) {
    SetUp();
    start([&](int rank) {
      Settings settings;
      settings.hook.context = this;
      settings.hook.call = [](Phase phase, void*) {
        if (phase == Phase::connecting) ::raise(SIGKILL);
      };
      std::vector<Bytes> addresses;
      const auto backend = make(0, {0, 1, 2}, rank, addresses, rank == victim ? settings : Settings{});
      try {
        backend->connect(addresses, testing::soon());
        ADD_FAILURE() << "rank " << rank << " is connected";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::peer_lost) << error.what();
        EXPECT_EQ(error.ranks(), std::vector<int>{victim}) << error.what();
      }
    });
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank != victim) expect_success(rank);
    }
    TearDown();
    children_.clear();
  }
  SetUp();
}

TEST_F(ShmProcesses, ARankThatDoesNotComeIsNamedByAll) {
  start([&](int rank) {
    std::vector<Bytes> addresses;
    const auto backend = make(0, {0, 1, 2}, rank, addresses);
    if (rank == 2) {
      wait_until([&] { return counter(0) == 2; });
      return;
    }
    try {
      backend->connect(addresses, Deadline::after(std::chrono::seconds(2)));
      ADD_FAILURE() << "rank " << rank << " is connected";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::timeout) << error.what();
      EXPECT_EQ(error.ranks(), std::vector<int>{2}) << error.what();
    }
    ++counter(0);
  });
  for (int rank = 0; rank < kRanks; ++rank) expect_success(rank);
}

/// A receive ends with its sender, but not with the death of a third rank.
TEST_F(ShmProcesses, TransfersEndWithTheirPeer) {
  start([&](int rank) {
    const auto backend = connected(0, {0, 1, 2}, rank);
    if (rank == 2) fall(SIGKILL);
    wait_until([&] { return counter(0) == 1; });
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    std::vector<float> values(50'000, 3.0F);
    Operation operation;
    operation.kind = rank == 0 ? OperationKind::send : OperationKind::recv;
    operation.root = 1 - rank;
    operation.count = values.size();
    operation.input = operation.output = values;
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(30));
    EXPECT_EQ(run(*backend, operation).outcome, Outcome::ok);
    ++counter(1);
    wait_until([&] { return counter(1) == 2; });  // the first rank to notice the death ends the group
    operation.kind = OperationKind::recv;
    operation.root = 2;
    const Ended ended = run(*backend, operation);
    EXPECT_EQ(ended.outcome, Outcome::peers_failed);
    EXPECT_EQ(ended.failure.ranks, std::vector<int>{2});
  });
  expect_success(0);
  expect_success(1);
}

/// Whether the kernel lets this process read that one's memory.
bool may_read(pid_t other, void* address) {
  char byte = 0;
  iovec here{&byte, 1};
  iovec there{address, 1};
  return ::process_vm_readv(other, &here, 1, &there, 1, 0) == 1;
}

/// A message is taken out of the memory of a sender that does nothing; a sender that dies meanwhile is named.
TEST_F(ShmProcesses, MessagesAreReadFromTheirSendersUntilItDies) {
  start([&](int rank) {
    if (rank == 2) return;
    const auto backend = connected(0, {0, 1}, rank);
    counter(3 + static_cast<std::size_t>(rank)) = ::getpid();
    std::vector<float> values(std::size_t{1} << 20U, rank == 0 ? 3.0F : 0.0F);
    Operation operation;
    operation.kind = rank == 0 ? OperationKind::send : OperationKind::recv;
    operation.root = 1 - rank;
    operation.count = values.size();
    operation.input = operation.output = values;
    if (rank == 0) {
      Request& first = backend->init({&operation, 1}, testing::soon());
      Request& second = backend->init({&operation, 1}, testing::soon());
      first.post();
      second.post();
      EXPECT_EQ(first.poll(), Outcome::running);  // both are announced
      ++counter(1);
      wait_until([&] { return counter(2) == 1; });
      return fall(SIGKILL);
    }
    wait_until([&] { return counter(1) == 1; });
    const base::ProcessNumber sender{.pid = counter(3), .space = base::own_process().space};
    const bool reads = may_read(sender.pid, table_);
    if (reads) {
      EXPECT_EQ(run(*backend, operation).outcome, Outcome::ok);
      EXPECT_EQ(values, std::vector<float>(values.size(), 3.0F));
      std::fill(values.begin(), values.end(), 0.0F);
    }
    Request& request = backend->init({&operation, 1}, testing::soon());
    request.post();
    EXPECT_EQ(request.poll(), Outcome::running);
    EXPECT_EQ(values.front() == 3.0F, reads) << "a part, at once";
    ++counter(2);
    wait_until([&] { return base::life_of(sender) == base::ProcessLife::gone; });
    wait_until([&] { return request.poll() != Outcome::running; });
    EXPECT_EQ(request.poll(), Outcome::peers_failed) << to_string(request.poll());
    EXPECT_EQ(request.failure().ranks, std::vector<int>{0}) << request.failure().cause;
    request.release();
  });
  expect_success(1);
  expect_success(2);
}

/// What a rank has shown before its end still counts, also after a regular exit.
TEST_F(ShmProcesses, ARankMayLeaveAfterItsLastOperation) {
  start([&](int rank) {
    const auto backend = connected(0, {0, 1, 2}, rank);
    for (std::uint64_t i = 1; i <= 20; ++i) {
      ASSERT_EQ(all_reduce(*backend, 20'000, i, testing::soon()).outcome, Outcome::ok);
    }
    if (rank == 0) ::_exit(0);
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(30));
    backend->close(testing::soon());
  });
  for (int rank = 0; rank < kRanks; ++rank) expect_success(rank);
}

/// A rank that looks late finds its operation complete, whatever the others have found since.
TEST_F(ShmProcesses, WhatTheDeadLeftBehindCountsAfterAnotherHasNamedThem) {
  start([&](int rank) {
    const auto backend = connected(0, {0, 1, 2}, rank);
    if (rank == 2) {
      std::vector<float> values(100, 1.0F);
      const Operation operation = sum_of(values, 1);
      Request& request = backend->init({&operation, 1}, testing::soon());
      request.post();
      ASSERT_EQ(request.poll(), Outcome::running);  // its part has arrived
      ++counter(1);
      wait_until([&] { return counter(2) == 1; });
      wait_until([&] { return request.poll() != Outcome::running; });
      EXPECT_EQ(request.poll(), Outcome::ok) << request.failure().cause;
      EXPECT_EQ(values, std::vector<float>(100, 3.0F));
      request.release();
    } else {
      wait_until([&] { return counter(1) == 1; });
      ASSERT_EQ(all_reduce(*backend, 100, 1, testing::soon()).outcome, Outcome::ok);
      if (rank == 1) fall(SIGKILL);
    }
    const Ended ended = all_reduce(*backend, 100, 2, testing::soon());
    EXPECT_EQ(ended.outcome, Outcome::peers_failed);
    EXPECT_EQ(ended.failure.ranks, std::vector<int>{1});
    ++counter(2);
  });
  expect_success(0);
  expect_success(2);
}

/// Children of a rank hold the memory, but not its lock or its name.
TEST_F(ShmProcesses, ForkedChildrenDoNotKeepARankAlive) {
  start([&](int rank) {
    auto backend = connected(0, {0, 1, 2}, rank);
    if (rank == 1) {
      const pid_t child = ::fork();
      if (child == 0) {
        backend.reset();  // does not affect the others
        ++counter(1);
        wait_until([&] { return counter(2) == 2; });
        ::_exit(0);
      }
      wait_until([&] { return counter(1) == 1; });
      ASSERT_EQ(all_reduce(*backend, 10, 1, testing::soon()).outcome, Outcome::ok);
      ::_exit(0);  // without closing
    }
    ASSERT_EQ(all_reduce(*backend, 10, 1, testing::soon()).outcome, Outcome::ok);
    ++counter(3);
    wait_until([&] { return counter(3) == 2; });  // the first rank to notice the end ends the group
    const Ended ended = all_reduce(*backend, 10, 2, testing::soon());
    EXPECT_EQ(ended.outcome, Outcome::peers_failed);
    EXPECT_EQ(ended.failure.ranks, std::vector<int>{1});
    ++counter(2);
  });
  expect_success(0);
  expect_success(2);
}

/// A program that reads all of /proc/self/fd opens the group's file and closes it: the kernel then drops the process's
/// lock.
TEST_F(ShmProcesses, ARankThatHasLostItsLockLivesUntilItDies) {
  start([&](int rank) {
    const auto backend = connected(0, {0, 1, 2}, rank);
    ASSERT_EQ(all_reduce(*backend, 10, 1, testing::soon()).outcome, Outcome::ok);
    if (rank == 1) {
      for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
        std::error_code none;
        if (std::filesystem::read_symlink(entry, none).string().find("ddp-group") == std::string::npos) continue;
        const base::UniqueFd file(::open(entry.path().c_str(), O_RDWR | O_CLOEXEC));
        ASSERT_TRUE(file);
        ++counter(1);
      }
      EXPECT_EQ(counter(1), 1);
      wait_until([&] { return counter(0) == 2; });
      ASSERT_EQ(all_reduce(*backend, 10, 2, testing::soon()).outcome, Outcome::ok);
      wait_until([&] { return counter(2) == 2; });
      ::raise(SIGKILL);
    }
    // they wait for it, and check whether it lives
    wait_until([&] { return counter(1) == 1; });
    std::vector<float> values(10, 1.0F);
    const Operation operation = sum_of(values, 2);
    Request& request = backend->init({&operation, 1}, testing::soon());
    request.post();
    for (int look = 0; look < 200; ++look) {
      ASSERT_EQ(request.poll(), Outcome::running) << "the living is called dead";
      std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    ++counter(0);
    wait_until([&] { return request.poll() != Outcome::running; });
    EXPECT_EQ(request.poll(), Outcome::ok);
    request.release();
    ++counter(2);
    const Ended ended = all_reduce(*backend, 10, 3, testing::soon());
    EXPECT_EQ(ended.outcome, Outcome::peers_failed);
    EXPECT_EQ(ended.failure.ranks, std::vector<int>{1});
  });
  expect_success(0);
  expect_success(2);
}

/// As in another container of the host: its own PID namespace, and a /dev/shm of one page, which does not matter.
TEST_F(ShmProcesses, ARankInOtherNamespacesIsSeenToDie) {
  const auto enter = [] {
    return ::unshare(CLONE_NEWNS | CLONE_NEWPID) == 0 &&
           ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
           ::mount("none", "/dev/shm", "tmpfs", 0, "size=4096") == 0;
  };
  const pid_t trial = ::fork();
  if (trial == 0) ::_exit(enter() ? 0 : 1);
  int status = 0;
  ::waitpid(trial, &status, 0);
  if (status != 0) GTEST_SKIP() << "namespaces cannot be made here";
  start([&](int rank) {
    const auto work = [&] {
      const auto backend = connected(0, {0, 1, 2}, rank);
      ASSERT_EQ(all_reduce(*backend, 100'000, 1, testing::soon()).outcome, Outcome::ok);
      if (rank == 1) {
        ++counter(0);
        std::this_thread::sleep_for(std::chrono::minutes(1));
      }
      const Ended ended = all_reduce(*backend, 100'000, 2, testing::soon());
      EXPECT_EQ(ended.outcome, Outcome::peers_failed);
      EXPECT_EQ(ended.failure.ranks, std::vector<int>{1});
    };
    if (rank != 1) return work();
    ASSERT_TRUE(enter());
    const pid_t first_of_namespace = ::fork();
    if (first_of_namespace == 0) {
      work();
      ::_exit(1);
    }
    wait_until([&] { return counter(0) == 1 || ::waitpid(first_of_namespace, nullptr, WNOHANG) != 0; });
    ::kill(first_of_namespace, SIGKILL);
    ::waitpid(first_of_namespace, nullptr, 0);
  });
  for (int rank = 0; rank < kRanks; ++rank) expect_success(rank);
}

}  // namespace

// The shared-memory backend with little memory, few descriptors, and under containers' rules: every rank gets an error
// that says what is missing and what to do, or none gets any.

namespace {

// UBSan's check of virtual calls opens a pipe, and takes its failure for an invalid object.
#ifdef DDP_ADDRESS_SANITIZER
constexpr bool kAddressSanitizer = true;
#else
constexpr bool kAddressSanitizer = false;
#endif

class ShmLimits : public ShmProcesses {
 protected:
  /// Rank @p limited calls @p limit before it connects; every rank must get an Error, that rank one with @p word and a
  /// hint.
  void expect_error(int limited, const std::function<void()>& limit, const std::string& word) {
    start([&](int rank) {
      std::vector<Bytes> addresses;
      const auto backend = make(0, {0, 1, 2}, rank, addresses);
      if (rank == limited) limit();
      try {
        backend->connect(addresses, testing::soon());
        ADD_FAILURE() << "rank " << rank << " is connected";
      } catch (const Error& error) {
        EXPECT_TRUE(rank != limited || std::string(error.what()).find(word) != std::string::npos) << error.what();
        EXPECT_TRUE(rank != limited || !error.hint().empty()) << error.what();
      }
    });
    for (int rank = 0; rank < kRanks; ++rank) expect_success(rank);
  }
  static std::function<void()> at_most(int resource, rlim_t limit) {
    return [=] {
      const rlimit value{limit, limit};
      ASSERT_EQ(::setrlimit(static_cast<__rlimit_resource>(resource), &value), 0);
    };
  }
};

TEST_F(ShmLimits, FileSizeOfTheLeader) { expect_error(0, at_most(RLIMIT_FSIZE, 100'000), "file sizes"); }
TEST_F(ShmLimits, FileSizeOfAMember) { expect_error(2, at_most(RLIMIT_FSIZE, 100'000), "file sizes"); }
TEST_F(ShmLimits, DescriptorsOfTheLeader) {
  if (kAddressSanitizer) GTEST_SKIP() << "the sanitizer itself needs descriptors";
  expect_error(0, at_most(RLIMIT_NOFILE, 4), "pen files");
}
TEST_F(ShmLimits, DescriptorsOfAMember) {
  if (kAddressSanitizer) GTEST_SKIP() << "the sanitizer itself needs descriptors";
  expect_error(1, at_most(RLIMIT_NOFILE, 5), "pen files");
}

/// What tmpfs reports when the host has no page left.
TEST_F(ShmLimits, MemoryOfTheLeader) {
  expect_error(
      0, [] { forbid({SYS_fallocate}, ENOSPC); }, "fallocate");
}
TEST_F(ShmLimits, MemoryOfAMember) {
  expect_error(
      1, [] { forbid({SYS_fallocate}, ENOMEM); }, "fallocate");
}

/// Pages must not run out at first use, where lack of memory would be SIGBUS.
TEST_F(ShmLimits, AllMemoryIsThereOnceRanksAreConnected) {
  start([&](int rank) {
    const auto backend = connected(0, {0, 1, 2}, rank);
    ASSERT_EQ(all_reduce(*backend, 10, 1, testing::soon()).outcome, Outcome::ok);
    int segments = 0;
    DIR* const folder = ::opendir("/proc/self/fd");
    while (const dirent* const entry = ::readdir(folder)) {
      std::array<char, 100> target{};
      if (::readlinkat(::dirfd(folder), entry->d_name, target.data(), target.size() - 1) < 0) continue;
      if (std::string(target.data()).find("ddp-group") == std::string::npos) continue;
      struct stat status {};
      ASSERT_EQ(::fstat(std::stoi(entry->d_name), &status), 0);
      EXPECT_GE(status.st_blocks * 512, status.st_size);
      ++segments;
    }
    ::closedir(folder);
    EXPECT_EQ(segments, 1);
    ++counter(0);
    wait_until([&] { return counter(0) == kRanks; });
  });
  for (int rank = 0; rank < kRanks; ++rank) expect_success(rank);
}

/// A cgroup of version 1 or 2 below this process's own that allows @p limit bytes; none if it cannot be created.
class MemoryCgroup {
 public:
  explicit MemoryCgroup(std::size_t limit) {
    std::ifstream own("/proc/self/cgroup");
    for (std::string line; std::getline(own, line);) {
      const bool second = line.rfind("0::", 0) == 0;
      const auto first = line.find(":memory:");
      if (!second && first == std::string::npos) continue;
      const std::string path = second ? line.substr(3) : line.substr(first + 8);
      folder_ =
          (second ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory") + path + "/ddp-test-" + std::to_string(::getpid());
      if (::mkdir(folder_.c_str(), 0700) == 0) {
        std::ofstream file(folder_ + (second ? "/memory.max" : "/memory.limit_in_bytes"));
        if (file && file << limit << std::flush) return;
        ::rmdir(folder_.c_str());
      }
      folder_.clear();
    }
  }
  MemoryCgroup& operator=(MemoryCgroup&&) = delete;
  ~MemoryCgroup() {
    if (!folder_.empty()) ::rmdir(folder_.c_str());
  }
  bool made() const { return !folder_.empty(); }
  void enter() const { std::ofstream(folder_ + "/cgroup.procs") << ::getpid() << std::flush; }

 private:
  std::string folder_;
};

/// The kernel kills processes beyond the limit; that must happen during rendezvous, not in a later operation.
TEST_F(ShmLimits, ARankWhoseCgroupIsFullIsNamed) {
  const MemoryCgroup cgroup(512 * 1024);
  if (!cgroup.made()) GTEST_SKIP() << "no memory cgroup can be made here";
  std::ifstream swaps("/proc/swaps");
  std::string line;
  if (std::getline(swaps, line) && std::getline(swaps, line)) GTEST_SKIP() << "what is beyond the limit is swapped out";
  start([&](int rank) {
    std::vector<Bytes> addresses;
    const auto backend = make(0, {0, 1, 2}, rank, addresses);
    if (rank == 1) cgroup.enter();
    try {
      backend->connect(addresses, testing::soon());
      ADD_FAILURE() << "rank " << rank << " is connected";
    } catch (const Error& error) {
      EXPECT_TRUE(rank == 1 || error.ranks() == std::vector<int>{1}) << error.what();
    }
  });
  expect_success(0);
  expect_success(2);
  int status = 0;
  ::waitpid(children_[1], &status, 0);  // before the cgroup is removed
  children_.resize(1);
}

/// Works without what Docker's default profile forbids without capabilities, and without ptrace rights.
TEST_F(ShmLimits, NothingThatContainersForbidIsNeeded) {
  start([&](int rank) {
    ASSERT_EQ(::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), 0);  // protects /proc/PID, as with ptrace_scope 3
    forbid({SYS_process_vm_readv,
            SYS_process_vm_writev,
            SYS_ptrace,
            SYS_kcmp,
            SYS_mbind,
            SYS_set_mempolicy,
            SYS_get_mempolicy,
            SYS_move_pages,
            SYS_migrate_pages,
            SYS_userfaultfd,
            SYS_perf_event_open,
            SYS_bpf,
            SYS_keyctl,
            SYS_add_key,
            SYS_request_key,
            SYS_open_by_handle_at,
            SYS_name_to_handle_at,
            SYS_unshare,
            SYS_setns,
            SYS_mount,
            SYS_io_uring_setup,
            SYS_pidfd_getfd,
            SYS_shmget},
           EPERM);
    auto backend = connected(0, {0, 1, 2}, rank);
    for (std::uint64_t i = 1; i <= 20; ++i) {
      ASSERT_EQ(all_reduce(*backend, i % 2 == 0 ? 100 : 200'000, i, testing::soon()).outcome, Outcome::ok);
    }
    if (rank != 1) {
      std::vector<float> values(500'000, rank == 0 ? 3.0F : 0.0F);
      Operation message;
      message.kind = rank == 0 ? OperationKind::send : OperationKind::recv;
      message.root = 2 - rank;
      message.count = values.size();
      message.input = message.output = values;
      EXPECT_EQ(run(*backend, message).outcome, Outcome::ok);
      EXPECT_EQ(values, std::vector<float>(values.size(), 3.0F));
      ++counter(1);
    }
    wait_until([&] { return counter(1) == 2; });
    if (rank == 1) fall(SIGKILL);
    const Ended ended = all_reduce(*backend, 100, 21, testing::soon());
    EXPECT_EQ(ended.outcome, Outcome::peers_failed);
    EXPECT_EQ(ended.failure.ranks, std::vector<int>{1});
  });
  expect_success(0);
  expect_success(2);
}

}  // namespace

}  // namespace ddp::collectives::shm
