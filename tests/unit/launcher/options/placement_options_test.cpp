// Cores and GPUs on the command line, in our words and in torchrun's.
#include "command_line_support.hpp"

namespace ddp::launcher {
namespace {

TEST(PlacementOptions, NumaBindingIsTorchrunsWayToSayBind) {
  EXPECT_EQ(parse({"--numa-binding=node", "p"}, {{"DDP_BIND", "core"}}).bind, BindPolicy::numa);
  EXPECT_EQ(parse({"--numa-binding=socket", "p"}).bind, BindPolicy::socket);
  EXPECT_THAT(parse({"--numa-binding=socket", "p"}).notices, IsEmpty());
  for (const char* policy : {"exclusive", "core-complex"}) {
    const auto options = parse({"--numa_binding", policy, "p"});
    EXPECT_EQ(options.bind, BindPolicy::numa);
    EXPECT_THAT(options.notices, ElementsAre(HasSubstr(policy)));
  }
  const auto both = parse({"--numa-binding=socket", "--bind", "core", "p"});
  EXPECT_EQ(both.bind, BindPolicy::core);
  EXPECT_THAT(both.notices, ElementsAre(HasSubstr("--bind overrides it")));
  EXPECT_THAT(complaint({"--numa-binding", "nodes", "p"}), HasSubstr("did you mean 'node'?"));
}

TEST(PlacementOptions, AVirtualLocalRankNeedsOneGpuPerRank) {
  using topology::GpuVisibility;
  EXPECT_EQ(parse({"--virtual-local-rank", "p"}).gpus, GpuVisibility::one);
  EXPECT_TRUE(parse({"--virtual-local-rank", "p"}).virtual_local_rank);
  EXPECT_EQ(parse({"--virtual-local-rank", "--gpus=one", "p"}).gpus, GpuVisibility::one);
  EXPECT_EQ(parse({"p"}, {{"PET_VIRTUAL_LOCAL_RANK", "1"}, {"DDP_GPUS", "all"}}).gpus, GpuVisibility::one);
  EXPECT_THAT(complaint({"--virtual-local-rank", "--gpus=none", "p"}),
              HasSubstr("--virtual-local-rank and --gpus=none"));
  EXPECT_THAT(complaint({"--virtual-local-rank", "--gpus=all", "p"}), HasSubstr("--gpus one"));
  EXPECT_THAT(complaint({"p"}, {{"PET_VIRTUAL_LOCAL_RANK", "1"}, {"DDP_GPUS", "none"}}),
              HasSubstr("PET_VIRTUAL_LOCAL_RANK and DDP_GPUS=none"));
}

TEST(PlacementOptions, Reports) {
  const auto options = parse({"--report-bindings", "--dry-run", "p"});
  EXPECT_TRUE(options.report_bindings);
  EXPECT_TRUE(options.dry_run);
}

}  // namespace
}  // namespace ddp::launcher
