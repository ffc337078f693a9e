// RANK and ROLE_RANK on nodes with different numbers of ranks (torchrun's behaviour).
#include "agent/job_layout.hpp"

namespace ddp::launcher {
namespace {

control::NodeLayout node(int nproc, const std::string& role) { return {.host = "n", .nproc = nproc, .role = role}; }

TEST(JobLayoutTest, RanksAreConsecutiveOnUnequalNodes) {
  const std::vector<control::NodeLayout> nodes{node(1, "w"), node(2, "w"), node(3, "w")};
  const NodeRanks last = ranks_of_node(nodes, 2);
  EXPECT_EQ(last.first_rank, 3);
  EXPECT_EQ(last.num_ranks, 3);
  EXPECT_EQ(last.world_size, 6);
  EXPECT_EQ(last.first_role_rank, 3);
  EXPECT_EQ(last.role_world_size, 6);
  EXPECT_EQ(ranks_of_node(nodes, 0).first_rank, 0);
}

TEST(JobLayoutTest, RoleRanksCountWithinTheRole) {
  const std::vector<control::NodeLayout> nodes{node(2, "trainer"), node(4, "reader"), node(3, "trainer")};
  const NodeRanks trainer = ranks_of_node(nodes, 2);
  EXPECT_EQ(trainer.first_rank, 6);
  EXPECT_EQ(trainer.first_role_rank, 2);
  EXPECT_EQ(trainer.role_world_size, 5);
  const NodeRanks reader = ranks_of_node(nodes, 1);
  EXPECT_EQ(reader.first_role_rank, 0);
  EXPECT_EQ(reader.role_world_size, 4);
}

TEST(JobLayoutTest, ANodeThatIsNotThereIsAnError) { EXPECT_THROW(ranks_of_node({node(1, "w")}, 1), std::out_of_range); }

}  // namespace
}  // namespace ddp::launcher
