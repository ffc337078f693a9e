// Which nodes a running job requests from Slurm, and how long it waits between requests.
#include "launch/expander.hpp"

namespace ddp::launcher {
namespace {

TEST(SallocCommand, AsksForNodesLikeThoseOfTheJobForItsRemainingTime) {
  const base::Environment environment{{{"SLURM_JOB_CPUS_PER_NODE", "16(x2),8"}, {"SLURM_GPUS_PER_NODE", "a100:4"}}};
  EXPECT_THAT(
      salloc_command(3, "1-02:03:04|gpu|me|high|(null)|fast", environment),
      ElementsAre("salloc", "--job-name=ddprun", "--no-kill", "--nodes=1-3", "--time=1-02:03:04", "--partition=gpu",
                  "--account=me", "--qos=high", "--constraint=fast", "--cpus-per-task=16", "--gpus-per-node=a100:4"));
}

TEST(SallocCommand, LeavesOutWhatSlurmDoesNotSayAndWhatTheUserSaysToSalloc) {
  EXPECT_THAT(salloc_command(1, "", base::Environment{{}}),
              ElementsAre("salloc", "--job-name=ddprun", "--no-kill", "--nodes=1"));
  EXPECT_THAT(salloc_command(1, "UNLIMITED|gpu|(null)||(null)|(null)", base::Environment{{{"SALLOC_PARTITION", "p"}}}),
              ElementsAre("salloc", "--job-name=ddprun", "--no-kill", "--nodes=1"));
  EXPECT_THAT(salloc_command(1, "0:00|gpu", base::Environment{{}}), Contains("--time=1")) << "0 would be no limit";
}

TEST(RequestPause, GrowsWhileNodesGoSoonAndEndsWithOneThatStays) {
  const RequestPause::Time start{1000s};
  RequestPause pause;
  for (const auto wait : {10s, 20s, 40s, 80s, 160s, 320s, 600s, 600s}) {
    pause.ended(start, start + 1s);
    EXPECT_EQ(pause.next(), start + 1s + wait);
  }
  pause.ended(start, start + 60s);
  pause.ended(start, start + 1s);
  EXPECT_EQ(pause.next(), start + 11s);
}

}  // namespace
}  // namespace ddp::launcher
