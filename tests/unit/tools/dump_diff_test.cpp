// What `ddp-info env --diff` shows, and what it leaves out.
#include "env/dump_diff.hpp"

#include <gtest/gtest.h>

namespace ddp::tools::env {
namespace {

/// A variable of which rank 0 has the first value, rank 1 the second, and so on.
EnvironmentReport::Variable each_its_own(const std::string& name, const std::vector<std::string>& values) {
  EnvironmentReport::Variable variable{.name = name};
  for (int rank = 0; const std::string& value : values) {
    variable.values.push_back({.value = value, .origin = "environment", .ranks = {rank++}});
  }
  return variable;
}

EnvironmentReport two_ranks(const std::vector<EnvironmentReport::Variable>& variables) {
  return {.hosts = {"n0", "n1"}, .variables = variables};
}

TEST(DumpDiff, ValuesThatDifferFromRankToRankAreCompared) {
  EXPECT_EQ(format_diff(two_ranks({each_its_own("NCCL_DEBUG", {"INFO", "WARN"})}),
                        two_ranks({each_its_own("NCCL_DEBUG", {"TRACE", "WARN"})})),
            "- NCCL_DEBUG=INFO (rank 0) [environment]\n+ NCCL_DEBUG=TRACE (rank 0) [environment]\n");
}

TEST(DumpDiff, ARankThatAVariableOfNcclChoosesIsCompared) {
  EXPECT_EQ(
      format_diff(two_ranks({}), two_ranks({each_its_own("NCCL_TOPO_DUMP_FILE_RANK", {"1", "1"})})),
      "+ NCCL_TOPO_DUMP_FILE_RANK=1 (rank 0) [environment]\n+ NCCL_TOPO_DUMP_FILE_RANK=1 (rank 1) [environment]\n");
}

TEST(DumpDiff, NumbersOfRanksAreLeftOut) {
  const auto numbers = [](const char* name) { return two_ranks({each_its_own(name, {"0", "1"})}); };
  for (const char* name : {"RANK", "LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "PALS_RANKID", "ROCR_VISIBLE_DEVICES"}) {
    EXPECT_EQ(format_diff(numbers(name), two_ranks({})), "no differences\n") << name;
  }
  EXPECT_EQ(format_diff(two_ranks({each_its_own("LOCAL_RANK", {"0", "0"})}), two_ranks({})), "no differences\n");
}

}  // namespace
}  // namespace ddp::tools::env
