// What ranks tell each other before NCCL starts, and which groups they do not make.
#include "collectives/nccl/rank_report.hpp"
#include "support/error_of.hpp"
#include "support/message_check.hpp"
#include "unit/collectives/nccl/device_group.hpp"

namespace ddp::collectives::nccl {

inline void fill_sample(ncclUniqueId& id) { id.internal[0] = 'x'; }

}  // namespace ddp::collectives::nccl

namespace ddp::collectives::testing {
namespace {

class NcclReports : public NcclTest {};

Bytes address_of(int device) {
  BackendConfig config;
  config.group = "x";
  config.device = device;
  return nccl::create(config)->address();
}

/// Connects three ranks of which @p who says of itself what @p change makes of it.
std::optional<Error> connect_error(const std::function<void(nccl::RankReport&)>& change, int who = 1) {
  std::vector<std::unique_ptr<Backend>> ranks;
  std::vector<Bytes> addresses;
  for (int rank = 0; rank < 3; ++rank) {
    BackendConfig config;
    config.group = "doubtful";
    config.rank = rank;
    config.size = 3;
    ranks.push_back(nccl::create(config));
    nccl::RankReport report = base::decode<nccl::RankReport>(ranks.back()->address());
    if (rank == who) change(report);
    addresses.push_back(base::encode(report));
  }
  std::optional<Error> first;
  for (const auto& rank : ranks) {
    try {
      rank->connect(addresses, soon());
    } catch (const Error& error) {
      EXPECT_EQ(std::string(error.what()), first ? first->what() : error.what()) << "all ranks say the same";
      first = error;
    }
    rank->close(soon());
  }
  return first;
}

TEST_F(NcclReports, OtherVersionsAreListedBeforeNcclStarts) {
  const Error error = connect_error([](nccl::RankReport& report) {
                        report.nccl_version = 21805;
                        report.host = "node-b";
                      }).value();
  EXPECT_EQ(error.code(), ErrorCode::mismatch);
  EXPECT_THAT(error.ranks(), ElementsAre(1));
  EXPECT_THAT(error.what(), AllOf(HasSubstr("ranks 0, 2: NCCL 2.30.7"), HasSubstr("rank 1: NCCL 2.18.5 on node-b")));
}

/// They may differ while a cluster is renewed node by node: NCCL compares none.
TEST_F(NcclReports, OtherDriversAreListedByOneRank) {
  ::testing::internal::CaptureStderr();
  EXPECT_FALSE(connect_error([](nccl::RankReport& report) { report.driver_version = 12040; }));
  const std::string said = ::testing::internal::GetCapturedStderr();
  const auto warning = said.find("the ranks have different drivers; ranks 0, 2: NCCL 2.30.7");
  ASSERT_NE(warning, std::string::npos) << said;
  EXPECT_EQ(said.find("different drivers", warning + 40), std::string::npos) << said;
}

TEST_F(NcclReports, WithoutAUniqueIdItSaysWhatNcclNeeds) {
  faults("GetUniqueId=fail:ncclSystemError");
  const Error error = ddp::test::thrown_by([&] { address_of(0); });
  EXPECT_EQ(error.code(), ErrorCode::unavailable);
  EXPECT_EQ(error.native(), "ncclSystemError (2)");
  EXPECT_THAT(error.what(), HasSubstr("NCCL_SOCKET_IFNAME"));
}

TEST_F(NcclReports, EightBitSumsNeedNewNcclAndGpus) {
  const nccl::RankReport good = base::decode<nccl::RankReport>(address_of(0));
  EXPECT_EQ(good.compute_capability, 90);
  nccl::RankReport other = good;
  other.compute_capability = 89;
  EXPECT_TRUE(nccl::adds_float8({good, good}));
  EXPECT_FALSE(nccl::adds_float8({good, other}));
  other = good;
  other.nccl_version = 22304;
  EXPECT_FALSE(nccl::adds_float8({other, other}));
}

TEST_F(NcclReports, TwoRanksOnOneGpuAreNamed) {
  std::string uuid;
  const Error error = connect_error([&](nccl::RankReport& report) {
                        report.device = base::decode<nccl::RankReport>(address_of(2)).device;
                        uuid = report.device;
                      }).value();
  EXPECT_EQ(error.code(), ErrorCode::conflict);
  EXPECT_THAT(error.ranks(), ElementsAre(1, 2));
  EXPECT_THAT(error.what(), AllOf(HasSubstr(uuid), HasSubstr("process")));
}

TEST_F(NcclReports, ARootWithoutIdAndForeignBytesAreRefused) {
  EXPECT_FALSE(connect_error([](nccl::RankReport&) {}));
  const Error error = connect_error([](nccl::RankReport& report) { report.id.reset(); }, 0).value();
  EXPECT_EQ(error.code(), ErrorCode::protocol);
  EXPECT_THAT(error.ranks(), ElementsAre(0));
  tests::check_message<nccl::RankReport>();
}

TEST_F(NcclReports, AGpuIsSharedIfBothRanksMay) {
  std::string uuid = base::decode<nccl::RankReport>(address_of(2)).device;
  const auto share = [&](bool may) {
    return connect_error([&, may](nccl::RankReport& report) {
      report.device = uuid;
      report.may_share = may;
    });
  };
  EXPECT_TRUE(share(true)) << "rank 2 may not";
  setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
  EXPECT_TRUE(share(false)) << "rank 1 may not";
  EXPECT_FALSE(share(true));
  unsetenv("NCCL_MULTI_RANK_GPU_ENABLE");
}

/// As NCCL has it: several ranks can so be tried on one GPU.
TEST_F(NcclReports, OldNcclSharesAGpuAmongRanksThatSeemToBeOnOtherHosts) {
  const auto shared = [](int version, const std::string& one_host, const std::string& other_host) {
    nccl::RankReport one = base::decode<nccl::RankReport>(address_of(0));
    one.nccl_version = version;
    nccl::RankReport other = one;
    one.host_id = one_host;
    other.host_id = other_host;
    try {
      nccl::check_reports({one, other}, "x", 0);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::conflict);
      return false;
    }
    return true;
  };
  EXPECT_TRUE(shared(22907, "a", "b"));
  EXPECT_FALSE(shared(22907, "a", "a"));
  EXPECT_FALSE(shared(22907, "a", ""));
  EXPECT_FALSE(shared(22907, "", ""));
  EXPECT_FALSE(shared(23007, "a", "b")) << "this one tells them by the GPU";
  setenv("NCCL_HOSTID", "node-7", 1);
  EXPECT_EQ(base::decode<nccl::RankReport>(address_of(0)).host_id, "node-7");
  unsetenv("NCCL_HOSTID");
}

TEST_F(NcclReports, AGroupWithAnOldGpuAddsNoEightBits) {
  for (const int capability : {89, 90}) {
    std::vector<std::unique_ptr<Backend>> ranks;
    std::vector<Bytes> addresses;
    for (int rank = 0; rank < 2; ++rank) {
      BackendConfig config;
      config.group = "mixed";
      config.rank = rank;
      config.size = 2;
      ranks.push_back(nccl::create(config));
      nccl::RankReport report = base::decode<nccl::RankReport>(ranks.back()->address());
      if (rank == 1) report.compute_capability = capability;
      addresses.push_back(base::encode(report));
    }
    ranks[0]->connect(addresses, soon());
    EXPECT_EQ(ranks[0]->traits().no_float8_arithmetic == nullptr, capability == 90);
    for (const auto& rank : ranks) rank->close(soon());
  }
}

TEST_F(NcclReports, ADeviceThatIsNotThereIsNamed) {
  BackendConfig config;
  config.group = "x";
  config.device = kDevices;
  const Error error = ddp::test::thrown_by([&] { nccl::create(config); });
  EXPECT_THAT(error.what(), AllOf(HasSubstr("CUDA device 8"), HasSubstr("CUDA_ERROR_INVALID_DEVICE")));
}

}  // namespace
}  // namespace ddp::collectives::testing
