// Options of ddprun behind the program are remarked on, unless they are the program's own.
#include "options/misplaced_words.hpp"

#include <gmock/gmock.h>

namespace ddp::launcher {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using Words = std::vector<std::string>;

std::string remark(const Words& command, const Words& given = {}) { return remark_on_program_options(command, given); }

TEST(MisplacedWords, OptionsOfLaunchersBehindTheProgramAreRemarkedOn) {
  EXPECT_THAT(remark({"train.py", "--nproc-per-node", "2"}),
              AllOf(HasSubstr("'--nproc-per-node' stands behind the program"), HasSubstr("ddprun --nproc-per-node")));
  EXPECT_THAT(remark({"train.py", "--lr", "1", "--nproc_per_node=2"}), HasSubstr("'--nproc_per_node=2'"));
  EXPECT_THAT(remark({"python", "train.py", "--nnodes=2"}), HasSubstr("--nnodes"));
}

TEST(MisplacedWords, OptionsOfTheProgramAreItsOwn) {
  EXPECT_EQ(remark({"train.py", "--role", "a", "--log-dir", "x"}), "");
  EXPECT_EQ(remark({"train.py", "--nproc-per-node", "2"}, {"--nproc-per-node", "2"}), "");
  EXPECT_EQ(remark({"train.py", "--", "--nnodes", "2"}), "");
  EXPECT_EQ(remark({"torchrun", "--nproc-per-node", "2", "train.py"}), "");
  EXPECT_EQ(remark({"python", "-m", "torch.distributed.run", "--nnodes=2", "train.py"}), "");
  EXPECT_EQ(remark({"accelerate", "launch", "--nnodes", "2"}), "");
  EXPECT_EQ(remark({}), "");
}

}  // namespace
}  // namespace ddp::launcher
