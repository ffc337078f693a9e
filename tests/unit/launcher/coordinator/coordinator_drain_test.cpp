// ddp-info resize: nodes that leave. --drain where several ddpruns run on the host: all leave, or none.
#include "coordinator_fixture.hpp"

namespace ddp::launcher::test {
namespace {

TEST(CoordinatorDrain, AllNodesOfAHostLeaveOrNone) {
  for (const bool enough : {true, false}) {
    CoordinatorJob job;
    job.options.membership.min_nodes = enough ? 1 : 2;
    job.options.membership.max_nodes = 3;
    for (const int link : {0, 1, 2}) {
      job.connect();
      job.say(link, hello(link == 0 ? "a" : "b"));
    }
    for (const int link : {2, 1, 0}) job.say(link, control::AttemptPrepared{.epoch = 0, .store_port = 29500});
    job.forget_all();
    const int user = job.connect();
    job.say(user, control::ResizeAsked{.drain = "b", .host = "h"});
    EXPECT_EQ(job.heard_one<control::Finish>(user).message,
              enough ? "b is to leave" : "too few nodes would be left for --nnodes=2:3");
    EXPECT_EQ(job.heard_texts(0).empty(), !enough) << "one of two could leave, but is not asked to";
    if (!enough) continue;
    for (const int link : {0, 1, 2}) job.end_ranks(link, 143);
    job.forget_all();
    for (const int link : {0, 1, 2}) job.say(link, kCleaned);
    EXPECT_EQ(job.goings.back(), "generation 1: 1 of 3, by ddp-info resize on h, without b, without b");
  }
}

TEST(CoordinatorDrain, NodesThatLeaveByWishAreFreedOnceTheirRanksHaveEnded) {
  CoordinatorJob job;
  job.options.membership.min_nodes = 1;
  job.options.membership.max_nodes = 3;
  for (const int link : {0, 1, 2}) {
    job.connect();
    control::Hello agent = hello(std::string(1, static_cast<char>('a' + link)));
    agent.allocation = "7";
    agent.slurm_node = "n" + std::to_string(link);
    job.say(link, agent);
  }
  for (const int link : {2, 1, 0}) job.say(link, control::AttemptPrepared{.epoch = 0, .store_port = 29500});
  job.forget_all();
  const int user = job.connect();
  job.say(user, control::ResizeAsked{.nodes = 1, .spares = 1, .host = "h"});
  EXPECT_EQ(job.heard_one<control::Finish>(user).message, "c is to leave; b is to wait as a spare");
  EXPECT_THAT(job.freed, IsEmpty());
  for (const int link : {0, 1, 2}) job.end_ranks(link, 143);
  for (const int link : {0, 1, 2}) job.say(link, kCleaned);
  EXPECT_THAT(job.freed, ElementsAre("n2 of 7"));
  EXPECT_EQ(job.goings.back(), "generation 1: 1 of 3, b waits, by ddp-info resize on h, without c");
}

}  // namespace
}  // namespace ddp::launcher::test
