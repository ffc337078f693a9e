// The shared-memory backend with a process a rank: ranks are killed and stopped at each point of an operation, and the
// others must end with the same cause, in time.
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>

#include <filesystem>
#include <string>

#include "base/unique_fd.hpp"
#include "multiproc/shm_processes.hpp"
#include "support/sanitized.hpp"

namespace ddp::collectives::shm {
namespace {

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
  /// Runs all_reduces until one fails. The victim falls in the third.
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

constexpr int kDeadlineMs = ::ddp::test::kSanitized ? 3000 : 400;  // the others may be as late

TEST_P(ShmFall, StoppedIsNamedAtTheDeadlineAndDoesNoHarmLater) {
  const int victim = GetParam().victim;
  start([&](int rank) {
    const Ended ended = work(rank, SIGSTOP, std::chrono::milliseconds(rank == victim ? 600'000 : kDeadlineMs));
    if (rank == victim) return;  // was continued
    EXPECT_EQ(ended.outcome, Outcome::timeout) << to_string(ended.outcome) << ended.failure.cause;
    const std::vector<int>& blamed = ended.failure.ranks;  // on a busy machine others may be late, too
    EXPECT_EQ(std::count(blamed.begin(), blamed.end(), victim), 1) << ended.failure.cause;
    std::vector<int> others{0, 1, 2};
    others.erase(others.begin() + victim);
    const auto next = connected(1, others, rank);
    for (std::uint64_t i = 1; i <= 50; ++i) {
      EXPECT_EQ(all_reduce(*next, 30'000, i, testing::soon()).outcome, Outcome::ok);
      if (i == 10) ++counter(1);  // the victim is continued now
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

/// A receive ends with its sender, and not with the death of a third.
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
    wait_until([&] { return counter(1) == 2; });  // whoever notices the death ends the group
    operation.kind = OperationKind::recv;
    operation.root = 2;
    const Ended ended = run(*backend, operation);
    EXPECT_EQ(ended.outcome, Outcome::peers_failed);
    EXPECT_EQ(ended.failure.ranks, std::vector<int>{2});
  });
  expect_success(0);
  expect_success(1);
}

/// What a rank has shown before its end still counts; so does a regular exit.
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

/// A rank that is slow to look finds its operation complete, whatever the others have found since.
TEST_F(ShmProcesses, WhatTheDeadLeftBehindCountsAfterAnotherHasNamedThem) {
  start([&](int rank) {
    const auto backend = connected(0, {0, 1, 2}, rank);
    if (rank == 2) {
      std::vector<float> values(100, 1.0F);
      const Operation operation = sum_of(values, 1);
      Request& request = backend->init({&operation, 1}, testing::soon());
      request.post();
      ASSERT_EQ(request.poll(), Outcome::running);  // its part is there now
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

/// Children of a rank hold the memory, but neither its lock nor its name.
TEST_F(ShmProcesses, ForkedChildrenDoNotKeepARankAlive) {
  start([&](int rank) {
    auto backend = connected(0, {0, 1, 2}, rank);
    if (rank == 1) {
      const pid_t child = ::fork();
      if (child == 0) {
        backend.reset();  // changes nothing for the others
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
    wait_until([&] { return counter(3) == 2; });  // whoever notices the end ends the group
    const Ended ended = all_reduce(*backend, 10, 2, testing::soon());
    EXPECT_EQ(ended.outcome, Outcome::peers_failed);
    EXPECT_EQ(ended.failure.ranks, std::vector<int>{1});
    ++counter(2);
  });
  expect_success(0);
  expect_success(2);
}

/// What reads all of /proc/self/fd opens the group's file and closes it: the kernel drops the process's lock then.
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
    // they wait for it, and ask whether it lives
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

/// As in another container of the host: own PID namespace, and a /dev/shm of one page, which does not matter.
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
}  // namespace ddp::collectives::shm
