// The double's communicators live and die as NCCL's do, including what collectives.md lists as easy to get wrong. The
// double names the rules' sources.
#include <spawn.h>

#include <barrier>

#include "fake_ranks.hpp"

namespace ddp::collectives::nccl {
namespace {

TEST_F(FakeNcclTest, InitIsInProgressUntilAllRanksAreThere) {
  const ncclUniqueId id = unique_id();
  with_devices(1, [&](int, Device& device) {
    ncclConfig_t options = config(Mode::non_blocking);
    ncclComm_t comm = nullptr;
    ASSERT_EQ(fake()->comm_init_rank_config(&comm, 2, id, 0, &options), ncclInProgress);
    ASSERT_NE(comm, nullptr);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ncclResult_t state = ncclSuccess;
    EXPECT_EQ(fake()->comm_get_async_error(comm, &state), ncclSuccess);
    EXPECT_EQ(state, ncclInProgress);
    // Use before it is ready is an error, not "in progress", and becomes the communicator's state.
    const Buffer data = one();
    EXPECT_EQ(all_reduce({0, 2, device, comm}, data), ncclInvalidArgument);
    EXPECT_THAT(fake().last_error(comm), HasSubstr("before the previous operation returned ncclSuccess"));
    EXPECT_EQ(fake()->comm_abort(comm), ncclSuccess);  // unblocks init
    EXPECT_EQ(fake()->comm_get_async_error(comm, &state), ncclInvalidArgument);
    EXPECT_THAT(fake_nccl_complaints(), HasSubstr("destroyed or aborted"));
  });
}

TEST_F(FakeNcclTest, InitRefusesWhatNcclRefuses) {
  const ncclUniqueId id = unique_id();
  with_devices(1, [&](int, Device&) {
    ncclComm_t comm = nullptr;
    ncclConfig_t options = config(Mode::blocking);
    EXPECT_EQ(fake()->comm_init_rank_config(&comm, 2, id, 2, &options), ncclInvalidArgument);
    options.magic = 0;
    EXPECT_EQ(fake()->comm_init_rank_config(&comm, 1, id, 0, &options), ncclInvalidArgument);
    options = config(Mode::blocking);
    options.maxCTAs = 8;
    options.minCTAs = 16;
    EXPECT_EQ(fake()->comm_init_rank_config(&comm, 1, id, 0, &options), ncclInvalidArgument);
    options = config(Mode::blocking);
    EXPECT_EQ(fake()->comm_init_rank_config(&comm, 1, ncclUniqueId{}, 0, &options), ncclSystemError);
    EXPECT_EQ(fake()->comm_abort(comm), ncclSuccess);  // what failed is there
    ASSERT_EQ(fake()->comm_init_rank_config(&comm, 1, id, 0, &options), ncclSuccess);
    EXPECT_EQ(fake()->comm_destroy(comm), ncclSuccess);
    EXPECT_EQ(fake()->comm_init_rank_config(&comm, 1, id, 0, &options), ncclSystemError);
    EXPECT_EQ(fake()->comm_abort(comm), ncclSuccess);
    EXPECT_THAT(fake_nccl_complaints(), HasSubstr("used before"));
  });
  std::thread([&] {
    ncclComm_t comm = nullptr;
    ncclConfig_t options = config(Mode::blocking);
    EXPECT_EQ(fake()->comm_init_rank_config(&comm, 1, unique_id(), 0, &options), ncclUnhandledCudaError);
  }).join();
}

TEST_F(FakeNcclTest, VersionsAndDevicesAreCompared) {
  fake_nccl_faults("CommInitRankConfig@1#1=version:22903");
  const ncclUniqueId versions = unique_id();
  const ncclUniqueId devices = unique_id();
  with_devices(2, [&](int rank, Device&) {
    ncclComm_t comm = nullptr;
    ncclConfig_t options = config(Mode::non_blocking);
    EXPECT_EQ(fake()->comm_init_rank_config(&comm, 2, versions, rank, &options), ncclInProgress);
    EXPECT_EQ(settle(comm), ncclInvalidUsage);
    EXPECT_THAT(fake().last_error(comm), AnyOf(HasSubstr("Mismatched NCCL version"), HasSubstr("Duplicate GPU")));
    EXPECT_EQ(fake()->comm_abort(comm), ncclSuccess);

    const Device first(0);  // both
    EXPECT_EQ(fake()->comm_init_rank_config(&comm, 2, devices, rank, &options), ncclInProgress);
    EXPECT_EQ(settle(comm), ncclInvalidUsage);
    EXPECT_EQ(fake()->comm_abort(comm), ncclSuccess);
  });
}

/// One thread, several devices: the calls of a group run in threads of their own, so they can rendezvous.
TEST_F(FakeNcclTest, OneThreadMakesSeveralRanksInAGroup) {
  const ncclUniqueId id = unique_id();
  const Device second(1);
  const Device first(0);
  std::vector<ncclComm_t> comms(2, nullptr);
  ncclConfig_t options = config(Mode::blocking);
  ncclConfig_t other = config(Mode::non_blocking);
  ASSERT_EQ(fake()->group_start(), ncclSuccess);
  for (int rank = 0; rank < 2; ++rank) {
    const Device device(rank);
    EXPECT_EQ(fake()->comm_init_rank_config(&comms[static_cast<std::size_t>(rank)], 2, id, rank, &options),
              ncclSuccess);
  }
  ASSERT_EQ(fake()->group_end(), ncclSuccess);
  EXPECT_EQ(fake()->group_end(), ncclInvalidUsage);
  EXPECT_THAT(fake_nccl_complaints(), HasSubstr("not in a group"));

  // A group may not mix blocking and non-blocking communicators; nothing of it happens then.
  ncclComm_t free = nullptr;
  EXPECT_EQ(fake()->comm_init_rank_config(&free, 1, unique_id(), 0, &other), ncclInProgress);
  EXPECT_EQ(settle(free), ncclSuccess);
  const Buffer data = one();
  ASSERT_EQ(fake()->group_start(), ncclSuccess);
  EXPECT_EQ(all_reduce({0, 2, const_cast<Device&>(first), comms[0]}, data), ncclSuccess);
  EXPECT_NE(all_reduce({0, 1, const_cast<Device&>(first), free}, data), ncclSuccess);
  EXPECT_EQ(fake()->group_end(), ncclInvalidArgument);
  EXPECT_EQ(fake_nccl_running(), 0);
  EXPECT_EQ(fake()->group_start(), ncclSuccess);
  for (ncclComm_t comm : comms) EXPECT_EQ(fake()->comm_destroy(comm), ncclSuccess);
  EXPECT_EQ(fake()->group_end(), ncclSuccess);
  EXPECT_EQ(fake()->comm_abort(free), ncclSuccess);
}

/// The stream gets the kernel after the call has returned: querying the stream meanwhile reports too early that all
/// work is done.
TEST_F(FakeNcclTest, LaunchesOfNonBlockingCommunicatorsComeLater) {
  fake_nccl_faults("AllReduce@0#1=launch_hang");
  with_ranks(2, Mode::non_blocking, [](Rank& rank) {
    const Buffer data = one();
    const ncclResult_t launching = all_reduce(rank, data);
    EXPECT_THAT(launching, AnyOf(ncclInProgress, ncclSuccess));  // it may be through before the call returns
    if (rank.rank == 0) {
      EXPECT_EQ(launching, ncclInProgress);
      EXPECT_TRUE(rank.device.idle());
      void* handle = nullptr;
      EXPECT_EQ(fake()->comm_register(rank.comm, data.get(), sizeof(float), &handle), ncclSuccess);
      EXPECT_EQ(fake()->comm_deregister(rank.comm, handle), ncclSuccess);
      EXPECT_THAT(fake_nccl_complaints(), ::testing::AllOf(::testing::HasSubstr("ncclCommRegister while"),
                                                           ::testing::HasSubstr("ncclCommDeregister while")));
      EXPECT_EQ(fake()->comm_finalize(rank.comm), ncclInvalidArgument);  // in progress
      // That becomes its state, until the launch's result overwrites it.
      EXPECT_TRUE(eventually([&] {
        fake_nccl_release();
        return settle(rank.comm) == ncclSuccess;
      }));
    }
    EXPECT_EQ(settle(rank.comm), ncclSuccess);
    rank.device.synchronize();
    EXPECT_EQ(data.read<float>()[0], 2);
  });
}

TEST_F(FakeNcclTest, FinalizeOnceAndDestroyOnce) {
  with_ranks(2, Mode::non_blocking, [](Rank& rank) {
    const Buffer data = one();
    EXPECT_THAT(all_reduce(rank, data), AnyOf(ncclInProgress, ncclSuccess));
    EXPECT_EQ(settle(rank.comm), ncclSuccess);
    const ncclResult_t finalizing = fake()->comm_finalize(rank.comm);
    EXPECT_THAT(finalizing, AnyOf(ncclInProgress, ncclSuccess));
    EXPECT_EQ(settle(rank.comm), ncclSuccess);
    EXPECT_EQ(data.read<float>()[0], 2);  // it waits for running work
    EXPECT_EQ(fake()->comm_finalize(rank.comm), ncclInvalidArgument);
    EXPECT_EQ(fake()->comm_abort(rank.comm), ncclSuccess);
    const ncclComm_t comm = rank.comm;
    rank.comm = nullptr;
    // A second end leaves an open group in the thread, which swallows all later calls.
    EXPECT_EQ(fake()->comm_destroy(comm), ncclInvalidArgument);
    ncclComm_t lost = nullptr;
    ncclConfig_t options = config(Mode::blocking);
    EXPECT_EQ(fake()->comm_init_rank_config(&lost, 1, unique_id(), 0, &options), ncclSuccess);
    EXPECT_EQ(fake()->group_end(), ncclSuccess);  // now it is made
    EXPECT_EQ(fake()->comm_destroy(lost), ncclSuccess);
  });
  EXPECT_THAT(fake_nccl_complaints(), HasSubstr("already been destroyed"));
}

TEST_F(FakeNcclTest, RevokeStopsWorkAndLeavesSplit) {
  with_ranks(3, Mode::non_blocking, [](Rank& rank) {
    const Buffer data = one();
    if (rank.rank != 2) {  // the third never comes
      EXPECT_THAT(all_reduce(rank, data), AnyOf(ncclInProgress, ncclSuccess));
      EXPECT_EQ(settle(rank.comm), ncclSuccess);
      EXPECT_FALSE(rank.device.idle());
    }
    EXPECT_EQ(fake()->comm_revoke(rank.comm, 1), ncclInvalidArgument);
    EXPECT_THAT(fake()->comm_revoke(rank.comm, kRevokeDefault), AnyOf(ncclInProgress, ncclSuccess));
    EXPECT_EQ(settle(rank.comm), ncclSuccess);
    rank.device.synchronize();
    EXPECT_EQ(data.read<float>()[0], 1);
    EXPECT_EQ(fake()->comm_revoke(rank.comm, kRevokeDefault), ncclInvalidArgument);
    EXPECT_EQ(all_reduce(rank, data), ncclInvalidUsage);
    ncclComm_t child = nullptr;
    EXPECT_THAT(fake()->comm_split(rank.comm, 0, rank.rank, &child, nullptr), AnyOf(ncclInProgress, ncclSuccess));
    EXPECT_EQ(settle(rank.comm), ncclSuccess);
    ASSERT_NE(child, nullptr);
    EXPECT_THAT(all_reduce({rank.rank, 3, rank.device, child}, data), AnyOf(ncclInProgress, ncclSuccess));
    EXPECT_EQ(settle(child), ncclSuccess);
    rank.device.synchronize();
    EXPECT_EQ(data.read<float>()[0], 3);
    EXPECT_EQ(fake()->comm_destroy(child), ncclSuccess);
    EXPECT_EQ(fake()->comm_finalize(rank.comm), ncclInvalidArgument);
    EXPECT_EQ(fake()->comm_abort(rank.comm), ncclSuccess);
    rank.comm = nullptr;
  });
}

TEST_F(FakeNcclTest, SplitByColorAndKey) {
  for (const Mode mode : {Mode::blocking, Mode::non_blocking}) {
    with_ranks(4, mode, [](Rank& rank) {
      // Ranks 0, 1 and 3 in reverse order; 2 stays out.
      const int color = rank.rank == 2 ? kSplitNoColor : 7;
      ncclComm_t child = nullptr;
      const ncclResult_t result = fake()->comm_split(rank.comm, color, -rank.rank, &child, nullptr);
      EXPECT_THAT(result, AnyOf(ncclInProgress, ncclSuccess));
      EXPECT_EQ(settle(rank.comm), ncclSuccess);  // the parent is in progress; then the child exists
      if (rank.rank == 2) {
        EXPECT_EQ(child, nullptr);
        return;
      }
      int number = -1;
      ASSERT_NE(child, nullptr);
      EXPECT_EQ(fake()->comm_user_rank(child, &number), ncclSuccess);
      EXPECT_EQ(number, rank.rank == 3 ? 0 : rank.rank == 1 ? 1 : 2);
      const Buffer data = one();
      EXPECT_THAT(all_reduce({number, 3, rank.device, child}, data), AnyOf(ncclInProgress, ncclSuccess));
      EXPECT_EQ(settle(child), ncclSuccess);
      rank.device.synchronize();
      EXPECT_EQ(data.read<float>()[0], 3);
      EXPECT_EQ(fake()->comm_destroy(child), ncclSuccess);
    });
  }
}

/// A child that shares resources also shares the abort flag.
TEST_F(FakeNcclTest, AbortReachesChildrenThatShare) {
  setenv("NCCL_COMM_BLOCKING", "1", 1);  // overrides the program's choice
  const ncclUniqueId id = unique_id();
  with_devices(2, [&](int rank, Device& device) {
    ncclConfig_t options = config(Mode::non_blocking);
    options.splitShare = 1;
    ncclComm_t comm = nullptr;
    ncclComm_t child = nullptr;
    ASSERT_EQ(fake()->comm_init_rank_config(&comm, 2, id, rank, &options), ncclSuccess);
    ASSERT_EQ(fake()->comm_split(comm, 0, rank, &child, nullptr), ncclSuccess);
    const Buffer data = one();
    if (rank == 0) {
      EXPECT_EQ(all_reduce({rank, 2, device, child}, data), ncclSuccess);
      EXPECT_FALSE(device.idle());
    }
    EXPECT_EQ(fake()->comm_abort(comm), ncclSuccess);
    device.synchronize();
    EXPECT_EQ(fake()->comm_abort(child), ncclSuccess);
  });
  unsetenv("NCCL_COMM_BLOCKING");
}

TEST_F(FakeNcclTest, ShrinkWithAbortEndsWhatHangsAndRenumbers) {
  with_ranks(4, Mode::blocking, [](Rank& rank) {
    if (rank.rank == 1) return;  // the lost rank
    const Buffer data = one();
    EXPECT_EQ(all_reduce(rank, data), ncclSuccess);
    std::vector<int> excluded{1};
    ncclComm_t child = nullptr;
    ASSERT_EQ(fake()->comm_shrink(rank.comm, excluded.data(), 1, &child, nullptr, kShrinkAbort), ncclSuccess);
    rank.device.synchronize();
    EXPECT_EQ(data.read<float>()[0], 1);
    int number = -1;
    EXPECT_EQ(fake()->comm_user_rank(child, &number), ncclSuccess);
    EXPECT_EQ(number, rank.rank == 0 ? 0 : rank.rank - 1);
    EXPECT_EQ(all_reduce({number, 3, rank.device, child}, data), ncclSuccess);
    rank.device.synchronize();
    EXPECT_EQ(data.read<float>()[0], 3);
    EXPECT_EQ(fake()->comm_destroy(child), ncclSuccess);
    excluded = {rank.rank};
    EXPECT_EQ(fake()->comm_shrink(rank.comm, excluded.data(), 1, &child, nullptr, kShrinkDefault), ncclInvalidArgument);
  });
}

TEST_F(FakeNcclTest, GrowByNewRanks) {
  const ncclUniqueId id = unique_id();
  ncclUniqueId grow_id{};
  std::atomic<bool> announced{false};
  with_devices(3, [&](int rank, Device& device) {
    ncclConfig_t options = config(Mode::blocking);
    ncclComm_t comm = nullptr;
    ncclComm_t grown = nullptr;
    if (rank < 2) {
      ASSERT_EQ(fake()->comm_init_rank_config(&comm, 2, id, rank, &options), ncclSuccess);
    }
    if (rank == 0) {
      ASSERT_EQ(fake()->comm_get_unique_id(comm, &grow_id), ncclSuccess);
      announced = true;
    }
    if (rank != 1) {
      EXPECT_TRUE(eventually([&] { return announced.load(); }));
    }
    const ncclUniqueId* given = rank == 1 ? nullptr : &grow_id;
    ASSERT_EQ(fake()->comm_grow(comm, 3, given, rank < 2 ? -1 : 2, &grown, &options), ncclSuccess);
    const Buffer data = one();
    EXPECT_EQ(all_reduce({rank, 3, device, grown}, data), ncclSuccess);
    device.synchronize();
    EXPECT_EQ(data.read<float>()[0], 3);
    EXPECT_EQ(fake()->comm_destroy(grown), ncclSuccess);
    if (comm != nullptr) {
      EXPECT_EQ(fake()->comm_destroy(comm), ncclSuccess);
    }
  });
}

TEST_F(FakeNcclTest, ScalableInitNeedsTheSameIds) {
  std::vector<ncclUniqueId> ids{unique_id(), unique_id()};
  with_devices(3, [&](int rank, Device& device) {
    std::vector<ncclUniqueId> mine = ids;
    ncclConfig_t options = config(Mode::blocking);
    ncclComm_t comm = nullptr;
    ASSERT_EQ(fake()->comm_init_rank_scalable(&comm, 3, rank, 2, mine.data(), &options), ncclSuccess);
    const Buffer data = one();
    EXPECT_EQ(all_reduce({rank, 3, device, comm}, data), ncclSuccess);
    device.synchronize();
    EXPECT_EQ(data.read<float>()[0], 3);
    EXPECT_EQ(fake()->comm_destroy(comm), ncclSuccess);
  });
}

TEST_F(FakeNcclTest, AThousandCommunicators) {
  with_devices(2, [](int, Device&) {});
  const Device device(0);
  for (int i = 0; i < 1000; ++i) {
    ncclConfig_t options = config(i % 2 == 0 ? Mode::blocking : Mode::non_blocking);
    ncclComm_t comm = nullptr;
    ncclUniqueId id{};
    ASSERT_EQ(fake()->get_unique_id(&id), ncclSuccess);
    fake()->comm_init_rank_config(&comm, 1, id, 0, &options);
    ASSERT_EQ(settle(comm), ncclSuccess);
    ASSERT_EQ(fake()->comm_destroy(comm), ncclSuccess);
  }
}

}  // namespace

// Faults of the double: what ranks see if others are late, call something else, abort or die; and the double's
// controls.

namespace {

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
        EXPECT_FALSE(rank.device.idle());  // its kernel waits on, notified or not
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
    std::barrier looked(2);  // before either aborts, which the other notices
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
    std::thread aborting([&] {  // abort may block, so it needs a thread of its own
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

// Ranks as processes: this test starts itself again.

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
  for (int i = 0; i < 3; ++i) {  // rank 2 dies in the third, in the stream
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
