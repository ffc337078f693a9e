// Which nodes a Slurm job keeps when others have left the job by their user's wish.
#include "launch/freed_nodes.hpp"

#include <filesystem>
#include <fstream>

#include <unistd.h>

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

/// What is said where squeue is this script.
std::string said_with_squeue(const std::string& script) {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / fmt::format("freed_nodes_test.{}", ::getpid());
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "squeue") << "#!/bin/sh\n" << script << "\n";
  std::filesystem::permissions(folder / "squeue", std::filesystem::perms::owner_all);
  const base::Environment environment{{{"PATH", folder.string() + ":/bin:/usr/bin"}}};
  ::testing::internal::CaptureStderr();
  stream::EventLoop loop;
  FreedNodes freed{loop, environment};
  freed.add("17", "n2");
  while (const auto next = freed.next_deadline()) {
    loop.run_once(*next);
    freed.time_passed();
  }
  std::filesystem::remove_all(folder);
  return ::testing::internal::GetCapturedStderr();
}

TEST(FreedNodes, SayWhySlurmDoesNotAnswer) {
  EXPECT_THAT(said_with_squeue("echo 'Unable to contact slurm controller' >&2; exit 1"),
              AllOf(HasSubstr("n2 is idle in Slurm job 17"), HasSubstr("Unable to contact slurm controller")));
}

TEST(FreedNodes, SayNothingOfAJobThatIsOver) {
  EXPECT_EQ(said_with_squeue("echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1"), "");
}

}  // namespace
}  // namespace ddp::launcher
