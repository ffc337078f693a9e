// ddp-info resize --drain where several ddpruns run on the host: all leave, or none.
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

}  // namespace
}  // namespace ddp::launcher::test
