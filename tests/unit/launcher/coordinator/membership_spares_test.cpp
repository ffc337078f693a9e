// ddp-info resize --spares: surplus nodes leave, in which order, and what the job then has. Nodes that fill a job.
#include "coordinator/membership_plan.hpp"

namespace ddp::launcher {
namespace {

const MembershipPlan::Time kBegin{1000s};

/// Of the nodes 'a', 'b', ... of Slurm's job 7, whose agents have these numbers; those beyond MAX wait.
MembershipPlan job_of(const std::string& nodes, int min_nodes, int max_nodes) {
  MembershipPlan plan{{.min_nodes = min_nodes,
                       .max_nodes = max_nodes,
                       .spares = 2,
                       .run_id = "run",
                       .version = "1",
                       .allocation = "7",
                       .last_call = 0s,
                       .joinable = true},
                      kBegin};
  for (const char name : nodes) {
    const control::Hello hello{.version = "1",
                               .run_id = "run",
                               .host = std::string(1, name),
                               .order = name - 'a',
                               .nproc = 1,
                               .allocation = "7",
                               .slurm_node = std::string("n") + name};
    EXPECT_EQ(plan.join(name, hello, kBegin), "");
  }
  EXPECT_TRUE(std::holds_alternative<Start>(plan.decide(kBegin)));
  return plan;
}

std::string freed(const Decision& decision) {
  const auto* release = std::get_if<Release>(&decision);
  return release != nullptr ? release->slurm_node + " of " + release->allocation : "none";
}

TEST(MembershipSpares, ThoseThatWaitLeaveFirstThenThoseOfTheLastSlots) {
  MembershipPlan plan = job_of("abcdef", 1, 4);
  EXPECT_EQ(plan.resize({.nodes = 3, .spares = 0, .by = "a user"}, kBegin).text, "d, e, f are to leave");
  EXPECT_EQ(freed(plan.decide(kBegin)), "ne of 7");
  EXPECT_EQ(freed(plan.decide(kBegin)), "nf of 7");
  const Decision announced = plan.decide(kBegin);
  ASSERT_TRUE(std::holds_alternative<Announce>(announced));
  EXPECT_THAT(std::get<Announce>(announced).leaving, ElementsAre("d"));
  plan.ended(GenerationEnd::resized, kBegin + 1s);
  EXPECT_EQ(freed(plan.decide(kBegin)), "nd of 7");
  const Decision next = plan.decide(kBegin + 1s);
  ASSERT_TRUE(std::holds_alternative<Start>(next));
  EXPECT_EQ(std::get<Start>(next).roster.nodes.size(), 3U);
  EXPECT_THAT(std::get<Start>(next).change.left, ElementsAre("d"));
  EXPECT_EQ(std::get<Start>(next).change.asked_by, "a user");
  EXPECT_EQ(plan.why_full(), "the job already has its 3 nodes") << "none is to wait";
}

TEST(MembershipSpares, SparesAloneChangeNoRanks) {
  MembershipPlan plan = job_of("abcd", 1, 2);
  EXPECT_EQ(plan.resize({.spares = 1, .by = "a user"}, kBegin).text, "d is to leave");
  EXPECT_EQ(freed(plan.decide(kBegin)), "nd of 7");
  EXPECT_TRUE(std::holds_alternative<WaitUntil>(plan.decide(kBegin)));
  EXPECT_EQ(plan.resize({.spares = 3, .by = "a user"}, kBegin).text, "the job can have 2 spares, not 3");
  EXPECT_EQ(plan.resize({.nodes = 1, .by = "a user"}, kBegin).text, "c is to leave; b is to wait as a spare")
      << "no more wait than the last wish for spares allows";
}

TEST(MembershipSpares, AnAgentThatCannotLeaveStaysAndAnotherLeaves) {
  MembershipPlan plan = job_of("ab", 1, 2);
  EXPECT_EQ(plan.resize({.nodes = 1, .spares = 0, .by = "a user", .stays = 'b'}, kBegin).text, "a is to leave");
}

TEST(MembershipSpares, OnlyAUsersWishFreesANode) {
  MembershipPlan plan = job_of("abc", 1, 2);
  plan.leave('c');
  EXPECT_EQ(freed(plan.decide(kBegin)), " of ") << "SIGTERM to its agent: Slurm may be about to take it";
  plan.leave('b', "a user");
  EXPECT_TRUE(std::holds_alternative<Announce>(plan.decide(kBegin)));
  plan.ended(GenerationEnd::resized, kBegin + 1s);
  EXPECT_EQ(freed(plan.decide(kBegin + 1s)), "nb of 7");
}

TEST(MembershipSpares, ANodeThatTakesTheLastPlaceIsTakenInAtOnce) {
  MembershipPlan plan = job_of("ab", 1, 4);
  const auto join = [&](int agent) {
    const control::Hello hello{.version = "1",
                               .run_id = "run",
                               .host = "late",
                               .order = agent,
                               .nproc = 1,
                               .allocation = "8",
                               .slurm_node = "late"};
    EXPECT_EQ(plan.join(agent, hello, kBegin + 100s), "");
    return plan.decide(kBegin + 100s);
  };
  EXPECT_TRUE(std::holds_alternative<WaitUntil>(join(0))) << "another may come within 2 s";
  EXPECT_TRUE(std::holds_alternative<Announce>(join(1))) << "no other could take part";
}

}  // namespace
}  // namespace ddp::launcher
