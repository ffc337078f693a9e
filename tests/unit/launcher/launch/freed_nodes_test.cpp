// Which nodes a Slurm job keeps when others have left the job by their user's wish.
#include "launch/freed_nodes.hpp"

namespace ddp::launcher {
namespace {

TEST(NodesToKeep, AreAllButThoseThatWereFreed) {
  EXPECT_THAT(nodes_to_keep("login|n[0-3]", {"n1", "n3"}), ElementsAre("n0", "n2"));
}

TEST(NodesToKeep, HaveTheBatchScriptsNode) {
  EXPECT_THAT(nodes_to_keep("n0|n[0-2]", {"n0", "n2"}), ElementsAre("n0", "n1"));
  EXPECT_THAT(nodes_to_keep("n0|n[0-2]", {"n0"}), IsEmpty()) << "nothing to give up";
}

TEST(NodesToKeep, AreNoneWhereSlurmNeedNotBeAsked) {
  EXPECT_THAT(nodes_to_keep("login|n[2-3]", {"n2", "n3"}), IsEmpty()) << "the job is about to end";
  EXPECT_THAT(nodes_to_keep("login|n[2-3]", {"n7"}), IsEmpty()) << "Slurm has taken it";
  for (const char* facts : {"", "slurm_load_jobs error: Invalid job id specified", "n0|n[2-"})
    EXPECT_THAT(nodes_to_keep(facts, {"n2"}), IsEmpty()) << facts;
}

}  // namespace
}  // namespace ddp::launcher
