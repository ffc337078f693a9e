// The user's order of Slurm's nodes, and files that do not fit the job.
#include "launch/node_order.hpp"

#include "launch/slurm_frontend.hpp"

namespace ddp::launcher {
namespace {

struct NodeOrderTest : testing::Test {
  NodeOrderTest() {
    std::string name = testing::TempDir() + "node_order_XXXXXX";
    folder_ = ::mkdtemp(name.data());
  }
  ~NodeOrderTest() override { std::filesystem::remove_all(folder_); }

  NodeOrder order(const std::string& text, const std::string& nodes = "n[0-3]") const {
    std::ofstream{folder_ / "hosts"} << text;
    return order_of_nodes(
        base::Environment{{{"SLURM_HOSTFILE", (folder_ / "hosts").string()}, {"SLURM_JOB_NODELIST", nodes}}});
  }
  std::filesystem::path folder_;
};

TEST_F(NodeOrderTest, IsThatOfTheFileEachNodeOnce) {
  EXPECT_THAT(order("n2\nn0\nn3\nn1\n").nodes, ElementsAre("n2", "n0", "n3", "n1"));
  EXPECT_THAT(order("n2\nn2\nn0\nn2\n", "n[0,2]").nodes, ElementsAre("n2", "n0"));
  EXPECT_THAT(order("# ring\r\nn3*4 n[1-2]\tn0\r\n").nodes, ElementsAre("n3", "n1", "n2", "n0"));
}

TEST_F(NodeOrderTest, NodesThatTheFileLacksFollow) {
  EXPECT_THAT(order("n3\n").nodes, ElementsAre("n3", "n0", "n1", "n2"));
}

TEST_F(NodeOrderTest, WhatDoesNotFitTheJobIsNotUsedAndSaid) {
  const NodeOrder other = order("n7\nn0\n");
  EXPECT_THAT(other.nodes, IsEmpty());
  EXPECT_THAT(other.remark, HasSubstr("the job does not have n7"));
  EXPECT_THAT(order("n[3-1]\n").remark, HasSubstr("is not used"));
  std::filesystem::remove(folder_ / "hosts");
  EXPECT_THAT(
      order_of_nodes(base::Environment{{{"SLURM_HOSTFILE", (folder_ / "none").string()}, {"SLURM_JOB_NODELIST", "n0"}}})
          .remark,
      HasSubstr("cannot be read"));
}

TEST_F(NodeOrderTest, WithoutAFileItIsSlurms) {
  EXPECT_THAT(order_of_nodes(base::Environment{{{"SLURM_JOB_NODELIST", "n[0-3]"}}}).nodes, IsEmpty());
  EXPECT_THAT(order("\n").nodes, IsEmpty());
}

TEST(AgentStepCommand, TakesTheFirstNodesOfTheOrder) {
  const auto command = agent_step_command({2}, "/bin/ddprun", {"train.py"}, "none", {"n2", "n0", "n3"});
  EXPECT_THAT(command, Contains("--nodelist=n2,n0"));
  EXPECT_THAT(command, Contains("--distribution=arbitrary"));
  EXPECT_THAT(command, Contains("--ntasks=2"));
  EXPECT_THAT(command, Not(Contains("--ntasks-per-node=1")));
  EXPECT_THAT(command, Not(Contains(HasSubstr("--nodes"))));
  const auto plain = agent_step_command({2}, "/bin/ddprun", {"train.py"}, "none");
  EXPECT_THAT(plain, Contains("--ntasks-per-node=1"));
  EXPECT_THAT(plain, Not(Contains(HasSubstr("--nodelist"))));
}

}  // namespace
}  // namespace ddp::launcher
