// Groups that are split off others by ncclCommSplit.
#include <gmock/gmock.h>

#include "unit/collectives/nccl/device_group.hpp"

namespace ddp::collectives::testing {
namespace {

using std::chrono::milliseconds;

class NcclSplit : public NcclTest {
 protected:
  void SetUp() override {
    NcclTest::SetUp();
    setenv("DDP_NCCL_SPLIT", "1", 1);
  }
  void TearDown() override {
    unsetenv("DDP_NCCL_SPLIT");
    EXPECT_STREQ(FAKE_NCCL(fake_nccl_complaints)(), "");
    NcclTest::TearDown();
  }
  static std::unique_ptr<Backend> child_of_two(int rank, int device) {
    BackendConfig config;
    config.group = "some";
    config.rank = rank;
    config.size = 2;
    config.device = device;
    config.splits_off = true;
    return nccl::create(config);
  }
  static Operation barrier() { return {}; }
};

/// Of three ranks the last and the first, in that order.
TEST_F(NcclSplit, GivesSomeRanksAGroupThatLivesByItself) {
  DeviceGroup parent(3);
  parent.on_all([&](int rank) { parent.run_call(rank, all_reduce_of(10), 1); });
  ASSERT_TRUE(parent.at(0).traits().splits);
  std::array<std::unique_ptr<Backend>, 2> children{child_of_two(0, 2), child_of_two(1, 0)};
  const std::vector<Bytes> addresses{children[0]->address(), children[1]->address()};
  parent.on_all([&](int rank) {
    Backend* const child = rank == 1 ? nullptr : children[rank == 2 ? 0 : 1].get();
    const int place = rank == 2 ? 0 : 1;
    parent.at(rank).split(child, place, soon());
    if (child != nullptr) {
      child->connect(addresses, soon());
      DeviceCall call(parent.own(rank).context, all_reduce_of(50), 2, place, 1);
      call.fill(parent.own(rank).stream.get());
      ASSERT_EQ(run(*child, call.operation()).outcome, Outcome::ok);
      call.check(parent.own(rank).stream.get());
    }
  });
  EXPECT_EQ(FAKE_NCCL(fake_nccl_calls)("CommSplit", -1), 3);
  EXPECT_EQ(FAKE_NCCL(fake_nccl_calls)("CommInitRankConfig", -1), 3) << "of the parent";
  // the end of one is none of the other, either way
  for (const auto& child : children) child->abort();
  parent.on_all([&](int rank) { parent.run_call(rank, all_reduce_of(20), 2); });
  for (const auto& child : children) child->close(soon());
}

TEST_F(NcclSplit, TheParentsAbortLeavesTheChild) {
  DeviceGroup parent(2);
  parent.on_all([&](int rank) { parent.run_call(rank, all_reduce_of(10), 1); });
  std::array<std::unique_ptr<Backend>, 2> children{child_of_two(0, 0), child_of_two(1, 1)};
  const std::vector<Bytes> addresses{children[0]->address(), children[1]->address()};
  parent.on_all([&](int rank) {
    Backend& child = *children[static_cast<std::size_t>(rank)];
    parent.at(rank).split(&child, rank, soon());
    child.connect(addresses, soon());
    ASSERT_EQ(run(child, barrier()).outcome, Outcome::ok);
    parent.at(rank).abort();
    parent.at(rank).close(soon());
    EXPECT_EQ(run(child, barrier()).outcome, Outcome::ok);
    child.close(soon());
  });
}

TEST_F(NcclSplit, ARankThatDoesNotComeEndsItByTheDeadline) {
  DeviceGroup parent(3);
  parent.on_all([&](int rank) { parent.run_call(rank, all_reduce_of(10), 1); });
  std::array<std::unique_ptr<Backend>, 2> children{child_of_two(0, 0), child_of_two(1, 1)};
  parent.on_all([&](int rank) {
    if (rank == 2) return;
    try {
      parent.at(rank).split(children[static_cast<std::size_t>(rank)].get(), rank, Deadline::after(milliseconds(300)));
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::timeout) << error.what();
    }
    children[static_cast<std::size_t>(rank)]->abort();
    parent.at(rank).abort();
  });
  for (const auto& child : children) child->close(soon());
}

TEST_F(NcclSplit, FailuresOfNcclAreTold) {
  DeviceGroup parent(2);
  parent.on_all([&](int rank) { parent.run_call(rank, all_reduce_of(10), 1); });
  std::array<std::unique_ptr<Backend>, 2> children{child_of_two(0, 0), child_of_two(1, 1)};
  faults("CommSplit=fail:ncclSystemError");
  parent.on_all([&](int rank) {
    try {
      parent.at(rank).split(children[static_cast<std::size_t>(rank)].get(), rank, soon());
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& error) {
      EXPECT_EQ(error.native(), "ncclSystemError (2)");
    }
    children[static_cast<std::size_t>(rank)]->abort();
    parent.at(rank).abort();
  });
  for (const auto& child : children) child->close(soon());
}

}  // namespace
}  // namespace ddp::collectives::testing
