// The shared-memory backend with little memory, few descriptors, and under the rules of containers: an error that says
// what is missing and what to do, on every rank, or none at all.
#include <dirent.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <cstddef>
#include <fstream>
#include <string>

#include "multiproc/shm_processes.hpp"

namespace ddp::collectives::shm {
namespace {

// UBSan's check of virtual calls opens a pipe, and takes its failure for a wrong object.
#ifdef DDP_ADDRESS_SANITIZER
constexpr bool kAddressSanitizer = true;
#else
constexpr bool kAddressSanitizer = false;
#endif

/// From now on these system calls fail with @p error in this process.
void forbid(const std::vector<unsigned>& calls, unsigned error) {
  std::vector<sock_filter> filter{BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr))};
  for (const unsigned call : calls) {
    filter.push_back(BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1));
    filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error));
  }
  filter.push_back(BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW));
  const sock_fprog program{.len = static_cast<unsigned short>(filter.size()), .filter = filter.data()};
  ASSERT_EQ(::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

class ShmLimits : public ShmProcesses {
 protected:
  /// In rank @p limited @p limit is called before it connects; every rank must get an Error, this one the one with
  /// @p word and a hint.
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

/// As tmpfs says where the host has no page left.
TEST_F(ShmLimits, MemoryOfTheLeader) {
  expect_error(
      0, [] { forbid({SYS_fallocate}, ENOSPC); }, "fallocate");
}
TEST_F(ShmLimits, MemoryOfAMember) {
  expect_error(
      1, [] { forbid({SYS_fallocate}, ENOMEM); }, "fallocate");
}

/// No page is left to be found when it is first used, where lack of memory would be SIGBUS.
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

/// A cgroup of version 1 or 2 below this process's own that takes @p limit bytes; none where it cannot be made.
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
  MemoryCgroup(const MemoryCgroup&) = delete;
  MemoryCgroup& operator=(const MemoryCgroup&) = delete;
  ~MemoryCgroup() {
    if (!folder_.empty()) ::rmdir(folder_.c_str());
  }
  bool made() const { return !folder_.empty(); }
  void enter() const { std::ofstream(folder_ + "/cgroup.procs") << ::getpid() << std::flush; }

 private:
  std::string folder_;
};

/// The kernel kills what goes beyond the limit; that happens while the ranks meet, and not in some later operation.
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
  ::waitpid(children_[1], &status, 0);  // before the cgroup goes
  children_.resize(1);
}

/// What Docker's default profile forbids without capabilities, and what would need ptrace rights.
TEST_F(ShmLimits, NothingThatContainersForbidIsNeeded) {
  start([&](int rank) {
    ASSERT_EQ(::prctl(PR_SET_DUMPABLE, 0, 0, 0, 0), 0);  // nobody may look into /proc/PID, as with ptrace_scope 3
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
