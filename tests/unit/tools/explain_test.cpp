// The explanation of one rank, to the letter.
#include "topo/explain.hpp"

#include <gmock/gmock.h>

#include "unit/tools/sample_reports.hpp"

namespace ddp::tools {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST(Explain, EveryDecisionAndSettingOfARankOfTheMachine) {
  EXPECT_EQ(format_explanation(test::sample_report(), 3),
            "rank 3, local rank 3 of 4, host n1\n"
            "(--bind numa, --gpus all)\n"
            "\n"
            "NIC: ib1\n"
            "  It is the nearest.\n"
            "  not ib0: SYS, further than PIX\n"
            "\n"
            "interface for sockets: chosen when the ranks of a job meet\n"
            "\n"
            "settings:\n"
            "  NCCL_IB_HCA=\"=mlx5_0:1,mlx5_1:1\"\n"
            "    these are fit\n"
            "  OMP_NUM_THREADS=99\n"
            "    the environment has it\n"
            "    warning: this rank has only 4 hardware threads\n");
}

TEST(Explain, RanksOfAJobCountThroughIt) {
  const std::string text = format_explanation(test::sample_job(), 8);
  EXPECT_THAT(text, HasSubstr("rank 8, local rank 0 of 4, host n3\n"));
  EXPECT_THAT(text, HasSubstr("interface for sockets: ib0 (10.0.0.3)\n  it routes to the others\n"));
  EXPECT_THAT(text, HasSubstr("binding: not bound\n  has 0-15, should have 0-1,8-9\n"));
  EXPECT_THAT(text, HasSubstr("but this rank does not have it\n"));
  EXPECT_THAT(format_explanation(test::sample_job(), 5), Not(HasSubstr("does not have it")));
}

TEST(Explain, SaysWhatIsSetInstead) {
  Report report = test::sample_job();
  report.kinds[0].rows[1].settings[1].actual = "7";
  report.kinds[0].rows[1].actual->given = CpuSet{{0}};
  const std::string text = format_explanation(report, 1);
  EXPECT_THAT(text, HasSubstr("but this rank has '7'\n"));
  EXPECT_THAT(text, HasSubstr("started with 0\n"));
}

TEST(Explain, ARankThatIsNotThere) {
  const auto error = test::error_of([] { format_explanation(test::sample_report(), 4); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace ddp::tools
