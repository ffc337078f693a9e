// Reports come through as they were sent, and no bytes of another rank do harm.
#include "topo/rank_report.hpp"

#include <gmock/gmock.h>

#include <span>

#include "unit/tools/sample_reports.hpp"

namespace ddp::tools {
namespace {

using testing::HasSubstr;
using testing::Key;
using testing::UnorderedElementsAre;

RankReport sample() {
  RankReport report;
  report.rank = 7;
  report.local_rank = 3;
  report.host = "n1";
  report.given = CpuSet{{0, 1, 64}};
  report.binding = {.cpus = CpuSet{{0, 1}}, .preferred_memory = -1};
  report.visible_gpus = {0, 1, 2};
  report.named_gpus = std::vector<int>{2, 0};
  report.environment = {{"OMP_NUM_THREADS", "2"}, {"NCCL_DEBUG", ""}};
  report.interface = {"ib0", "10.0.0.1", "it routes to n2"};
  report.nccl_conf = {{.path = "/etc/nccl.conf", .digest = 0, .settings = {{"NCCL_IB_HCA", "mlx5"}}}};
  report.processor_thousandths = 1500;
  report.processors_group = "/job";
  return report;
}

TEST(RankReport, ComesThrough) {
  EXPECT_EQ(decode_rank_report(encode(sample())), sample());
  RankReport other = sample();
  other.named_gpus.reset();
  other.failure = "hwloc failed";
  EXPECT_EQ(decode_rank_report(encode(other)), other);
  EXPECT_NE(decode_rank_report(encode(other)), sample());
}

TEST(RankReport, EveryCutIsAnError) {
  const Bytes bytes = encode(sample());
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const auto error = test::error_of([&] { decode_rank_report(std::span{bytes}.first(size)); });
    ASSERT_TRUE(error) << size;
    EXPECT_EQ(error->code(), ErrorCode::protocol) << size;
  }
  Bytes longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_TRUE(test::error_of([&] { decode_rank_report(longer); }));
}

TEST(RankReport, EveryWrongByteIsAnErrorOrAnotherReport) {
  const Bytes bytes = encode(sample());
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    Bytes wrong = bytes;
    wrong[i] ^= std::byte{0xff};
    const auto error = test::error_of([&] { EXPECT_NE(decode_rank_report(wrong), sample()) << i; });
    if (error) {
      EXPECT_EQ(error->code(), ErrorCode::protocol) << i;
    }
  }
}

TEST(RankReport, VersionsAreToldApart) {
  Bytes bytes = encode(sample());
  bytes[0] = std::byte{9};
  const auto error = test::error_of([&] { decode_rank_report(bytes); });
  ASSERT_TRUE(error);
  EXPECT_THAT(error->what(), HasSubstr("version 9 instead of 2"));
}

TEST(RankReport, IsBounded) {
  RankReport report = sample();
  report.environment["OMP_PLACES"] = std::string(kLargestReportBytes, 'x');
  const auto error = test::error_of([&] { encode(report); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::invalid_argument);
  EXPECT_TRUE(test::error_of([] { decode_rank_report(Bytes(kLargestReportBytes + 1)); }));
}

TEST(RankReport, SecretsStayWhereTheyAre) {
  const base::Environment environment{{{"NCCL_DEBUG", "INFO"},
                                       {"CUDA_VISIBLE_DEVICES", "0"},
                                       {"OMP_NUM_THREADS", "2"},
                                       {"DDP_BIND", "numa"},
                                       {"AWS_SECRET_ACCESS_KEY", "s"},
                                       {"MY_NCCL_TOKEN", "s"},
                                       {"PATH", "/bin"}}};
  EXPECT_THAT(reported_variables(environment), UnorderedElementsAre(Key("NCCL_DEBUG"), Key("CUDA_VISIBLE_DEVICES"),
                                                                    Key("OMP_NUM_THREADS"), Key("DDP_BIND")));
}

}  // namespace
}  // namespace ddp::tools
