// Faults of the double: what ranks see when others are late, call something else, abort or die; and its controls.
#include <spawn.h>
#include <sys/wait.h>

#include <barrier>
#include <filesystem>
#include <fstream>

#include "fake_ranks.hpp"

namespace ddp::collectives::nccl {
namespace {

using ::testing::HasSubstr;

ncclResult_t state_of(ncclComm_t comm) {
  ncclResult_t state = ncclSuccess;
  EXPECT_EQ(fake()->comm_get_async_error(comm, &state), ncclSuccess);
  return state;
}
void nap() { std::this_thread::sleep_for(std::chrono::milliseconds(60)); }
void abort(Rank& rank) {
  EXPECT_EQ(fake()->comm_abort(rank.comm), ncclSuccess);
  rank.comm = nullptr;
}

TEST_F(FakeNcclTest, AbortUnblocksItsOwnRankAndPeersHearOfIt) {
  for (const bool report : {true, false}) {
    fake_nccl_set_report_peers(report);
    std::atomic<bool> aborted{false};
    with_ranks(3, Mode::blocking, [&](Rank& rank) {
      const Buffer data = one();
      if (rank.rank != 2) {
        EXPECT_EQ(all_reduce(rank, data), ncclSuccess);
      }
      if (rank.rank == 0) {
        abort(rank);
        rank.device.synchronize();
        aborted = true;
      } else if (rank.rank == 1) {
        EXPECT_TRUE(eventually([&] { return aborted.load(); }));
        nap();
        EXPECT_FALSE(rank.device.idle());  // told or not, its kernel waits on
        if (report) {
          EXPECT_TRUE(eventually([&] { return state_of(rank.comm) == ncclRemoteError; }));
          EXPECT_EQ(all_reduce(rank, data), ncclRemoteError);  // it sticks
        } else {
          EXPECT_EQ(state_of(rank.comm), ncclSuccess);
        }
        abort(rank);
      }
    });
  }
}

TEST_F(FakeNcclTest, DifferentCallsAreToldOrHang) {
  for (const bool strict : {true, false}) {
    fake_nccl_set_strict(strict);
    std::barrier looked(2);  // before either aborts, which the other hears of
    with_ranks(2, Mode::blocking, [&](Rank& rank) {
      const Buffer data(std::vector<float>(8, 1));
      const std::size_t count = rank.rank == 0 ? 8 : 4;
      EXPECT_EQ(fake()->all_reduce(data.get(), data.get(), count, ncclFloat32, ncclSum, rank.comm, rank.stream()),
                ncclSuccess);
      if (strict) {
        rank.device.synchronize();
        EXPECT_EQ(state_of(rank.comm), ncclInvalidArgument);
      } else {
        nap();
        EXPECT_FALSE(rank.device.idle());
        EXPECT_EQ(state_of(rank.comm), ncclSuccess);
      }
      looked.arrive_and_wait();
      abort(rank);
    });
    if (strict) {
      EXPECT_THAT(fake_nccl_complaints(), HasSubstr("count 8, type 7, op 0, root 0), but rank 1 AllReduce(count 4"));
    }
  }
  fake_nccl_set_strict(true);
  with_ranks(2, Mode::blocking, [](Rank& rank) {
    const Buffer data(std::vector<float>(8, 1));
    if (rank.rank == 0) {
      EXPECT_EQ(fake()->send(data.get(), 8, ncclFloat32, 1, rank.comm, rank.stream()), ncclSuccess);
    } else {
      EXPECT_EQ(fake()->receive(data.get(), 2, ncclFloat32, 0, rank.comm, rank.stream()), ncclSuccess);
    }
    rank.device.synchronize();
    abort(rank);
  });
  EXPECT_THAT(fake_nccl_complaints(), HasSubstr("Recv of 8 bytes, but rank 0 sends 32"));
}

/// Operations of one communicator run in the order of their launches, whatever their streams.
TEST_F(FakeNcclTest, LaunchOrderHoldsAcrossStreams) {
  fake_nccl_faults("AllReduce#1=kernel_delay:50");
  with_ranks(2, Mode::blocking, [](Rank& rank) {
    CUstream second = nullptr;
    EXPECT_EQ(cuStreamCreateWithPriority(&second, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
    const Buffer data = one();
    EXPECT_EQ(all_reduce(rank, data), ncclSuccess);  // 2
    EXPECT_EQ(fake()->all_reduce(data.get(), data.get(), 1, ncclFloat32, ncclProd, rank.comm, second), ncclSuccess);
    EXPECT_EQ(cuStreamSynchronize(second), CUDA_SUCCESS);
    EXPECT_EQ(data.read<float>()[0], 4);
    EXPECT_EQ(cuStreamDestroy(second), CUDA_SUCCESS);
  });
}

/// Two communicators in different order on two ranks, on devices with room for one kernel.
TEST_F(FakeNcclTest, DeviceSlotsLetCommunicatorsWaitForEachOther) {
  fake_nccl_set_device_slots(1);
  const ncclUniqueId id = unique_id();
  std::atomic<int> launched{0};
  std::atomic<int> checked{0};
  with_ranks(2, Mode::blocking, [&](Rank& rank) {
    ncclComm_t other = nullptr;
    ncclConfig_t options = config(Mode::blocking);
    ASSERT_EQ(fake()->comm_init_rank_config(&other, 2, id, rank.rank, &options), ncclSuccess);
    const Device second(rank.rank);
    const Buffer data = one();
    const Buffer more = one();
    const auto call = [&](ncclComm_t comm, CUstream stream, const Buffer& buffer) {
      EXPECT_EQ(fake()->all_reduce(buffer.get(), buffer.get(), 1, ncclFloat32, ncclSum, comm, stream), ncclSuccess);
    };
    call(rank.rank == 0 ? rank.comm : other, rank.stream(), data);
    nap();
    call(rank.rank == 0 ? other : rank.comm, second.stream(), more);
    ++launched;
    EXPECT_TRUE(eventually([&] { return launched == 2; }));
    nap();
    EXPECT_FALSE(rank.device.idle());
    EXPECT_FALSE(second.idle());
    ++checked;
    EXPECT_TRUE(eventually([&] { return checked == 2; }));  // an abort makes room on its device
    EXPECT_EQ(fake()->comm_abort(other), ncclSuccess);
    abort(rank);
  });
}

TEST_F(FakeNcclTest, LazyConnectionsBlockTheFirstCollective) {
  fake_nccl_set_lazy_connect(true);
  std::atomic<bool> issued{false};
  with_ranks(2, Mode::blocking, [&](Rank& rank) {
    const Buffer data = one();
    if (rank.rank == 1) {
      nap();
      EXPECT_FALSE(issued);
    }
    EXPECT_EQ(all_reduce(rank, data), ncclSuccess);
    issued = true;
    rank.device.synchronize();
  });
}

TEST_F(FakeNcclTest, OrderedFaultsMeetTheirCall) {
  EXPECT_FALSE(fake_nccl_faults("AllReduce=explode"));
  EXPECT_FALSE(fake_nccl_faults("AllReduce=fail:ncclNonsense"));
  ASSERT_TRUE(fake_nccl_faults("AllReduce@0#2=fail:ncclSystemError,AllReduce@1#2=async:ncclInternalError:20"));
  with_ranks(2, Mode::blocking, [&](Rank& rank) {
    const Buffer data = one();
    EXPECT_EQ(all_reduce(rank, data), ncclSuccess);
    rank.device.synchronize();
    EXPECT_EQ(all_reduce(rank, data), rank.rank == 0 ? ncclSystemError : ncclSuccess);
    if (rank.rank == 1) {
      EXPECT_TRUE(eventually([&] { return state_of(rank.comm) == ncclInternalError; }));
    }
    EXPECT_EQ(fake_nccl_calls("AllReduce", rank.rank), 2);
    abort(rank);
  });
}

TEST_F(FakeNcclTest, HangsEndWithAbortAndStuckKernelsWithReleaseOnly) {
  ASSERT_TRUE(fake_nccl_faults("AllReduce@0=kernel_hang,AllReduce@1=kernel_stuck,CommAbort@0=delay:50"));
  with_ranks(2, Mode::blocking, [&](Rank& rank) {
    const Buffer data = one();
    EXPECT_EQ(all_reduce(rank, data), ncclSuccess);
    std::atomic<bool> ended{false};
    std::thread aborting([&] {  // abort may block, so no caller that matters may call it
      EXPECT_EQ(fake()->comm_abort(rank.comm), ncclSuccess);
      ended = true;
    });
    if (rank.rank == 1) {
      nap();
      EXPECT_FALSE(ended);
      EXPECT_TRUE(eventually([&] {
        fake_nccl_release();
        return ended.load();
      }));
    }
    aborting.join();
    rank.comm = nullptr;
  });
}

// Ranks that are processes. This test starts itself again.

constexpr auto kChildRank = "TEST_FAKE_NCCL_RANK";

std::string id_file() { return std::string(std::getenv("FAKE_NCCL_DIR")) + ".id"; }

TEST_F(FakeNcclTest, ProcessOfAnotherRank) {
  const char* number = std::getenv(kChildRank);
  if (number == nullptr) GTEST_SKIP() << "runs in the processes that the next test starts";
  const int me = std::atoi(number);
  const Device device(me);
  ncclUniqueId id{};
  std::ifstream(id_file(), std::ios::binary).read(id.internal, sizeof id.internal);
  ncclConfig_t options = config(Mode::non_blocking);
  ncclComm_t comm = nullptr;
  ASSERT_EQ(fake()->comm_init_rank_config(&comm, 3, id, me, &options), ncclInProgress);
  ASSERT_EQ(settle(comm), ncclSuccess);
  const std::size_t count = 30'000;
  const Buffer data(std::vector<float>(count, 1));
  for (int i = 0; i < 3; ++i) {  // rank 2 dies in the third, on the stream
    const ncclResult_t issued =
        fake()->all_reduce(data.get(), data.get(), count, ncclFloat32, ncclSum, comm, device.stream());
    ASSERT_TRUE(issued == ncclInProgress || issued == ncclSuccess);
    ASSERT_EQ(settle(comm), ncclSuccess);
    if (i < 2) device.synchronize();
  }
  EXPECT_EQ(data.read<float>()[count - 1], 9);
  EXPECT_TRUE(eventually([&] { return state_of(comm) == ncclRemoteError; }));
  EXPECT_EQ(fake()->comm_abort(comm), ncclSuccess);
}

TEST_F(FakeNcclTest, ProcessesCommunicateAndSeeADeath) {
  if (std::getenv(kChildRank) != nullptr) GTEST_SKIP();
  const ncclUniqueId id = unique_id();
  std::ofstream(id_file(), std::ios::binary).write(id.internal, sizeof id.internal);
  std::vector<pid_t> children;
  for (int rank = 0; rank < 3; ++rank) {
    setenv(kChildRank, std::to_string(rank).c_str(), 1);
    if (rank == 2) setenv("FAKE_NCCL_FAULTS", "AllReduce#3=kernel_kill", 1);
    std::string program = "/proc/self/exe";
    std::string filter = "--gtest_filter=FakeNcclTest.ProcessOfAnotherRank";
    std::vector<char*> arguments{program.data(), filter.data(), nullptr};
    pid_t child = 0;
    ASSERT_EQ(posix_spawn(&child, program.c_str(), nullptr, nullptr, arguments.data(), environ), 0);
    children.push_back(child);
  }
  unsetenv(kChildRank);
  unsetenv("FAKE_NCCL_FAULTS");
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    if (child == children.back()) {
      EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    } else {
      EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
  }
  std::filesystem::remove(id_file());
}

}  // namespace
}  // namespace ddp::collectives::nccl
