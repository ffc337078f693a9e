// What is said of a step's end, from a store in which nodes have left their notes; and the way of an end from
// slurmstepd through the witness to that store.
#include "step_program/step_watch.hpp"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <poll.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <variant>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ddp/error.hpp>

#include "base/byte_stream.hpp"
#include "base/socket.hpp"
#include "step_program/end_reporter.hpp"
#include "store_server/store_server.hpp"
#include "task_side/network_notes.hpp"
#include "task_side/node_channels.hpp"

namespace ddp::srun_plugin {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr std::int32_t exited(int code) { return code << 8; }

RankEnd end_of(std::uint32_t rank, std::int32_t status, std::int64_t when_ms = 1'000'000) {
  return {.rank = rank, .status = status, .when_ms = when_ms, .node = "n" + std::to_string(rank / 2)};
}

TEST(StepNotes, ComeBackAsTheyWere) {
  const StepNote note{.node_list = "n[0-3]", .world_size = 8};
  EXPECT_EQ(decode_step_note(encode(note)), note);
  const RankEnd end = end_of(3, exited(1));
  EXPECT_EQ(decode_rank_end(encode(end)), end);
  const Bytes whole = encode(end);
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_THROW(decode_rank_end(std::span{whole}.first(size)), Error) << size;
}

TEST(StepEnd, IsDescribedByCodeOrSignal) {
  EXPECT_EQ(describe_end(exited(3)), "failed with exit code 3");
  EXPECT_EQ(describe_end(SIGKILL), "was ended by SIGKILL (9)");
  EXPECT_EQ(describe_end(SIGSEGV | 0x80), "was ended by SIGSEGV (11), core dumped");
}

TEST(StepEnd, AFailureIsOneLine) {
  EXPECT_THAT(describe_failure(end_of(1, exited(1)), {}, true),
              ElementsAre("srun --ddp: rank 1 on n0 failed with exit code 1; the step ends"));
  EXPECT_THAT(describe_failure(end_of(1, exited(1)), {}, false), ElementsAre(HasSubstr("the step goes on")));
  EXPECT_THAT(describe_failure(end_of(1, SIGTERM), {}, true), ElementsAre(HasSubstr("time limits")));
}

TEST(StepEnd, AnExceptionThatIsKnownStandsInTheLine) {
  EXPECT_THAT(describe_failure(end_of(1, exited(1)), {}, true, "ValueError: bad"),
              ElementsAre("srun --ddp: rank 1 on n0 failed with exit code 1 (ValueError: bad); the step ends"));
}

TEST(StepEnd, WhoEndedWithZeroBeforeIsNamed) {
  EXPECT_THAT(describe_failure(end_of(0, exited(1), 18'000), {end_of(2, 0, 1'000), end_of(3, 0, 18'001)}, true),
              ElementsAre(HasSubstr("rank 0"),
                          "srun --ddp: rank 2 on n1 ended with exit code 0 17.0 s before rank 0: "
                          "did others still wait for it?"));
  std::vector<RankEnd> many;
  for (std::uint32_t rank = 1; rank < 20; ++rank) many.push_back(end_of(rank, 0));
  EXPECT_THAT(describe_failure(end_of(0, exited(1)), many, true)[1], HasSubstr("rank 8 on n4 and 11 more"));
}

class StepWatchTest : public ::testing::Test {
 protected:
  StepStore client() { return {"127.0.0.1", server_.port()}; }
  EndReporter reporter(const std::string& name, std::int64_t first_rank = 0) {
    return {"127.0.0.1",
            server_.port(),
            {.name = name, .first_rank = first_rank, .step = {.node_list = "n[0-2]", .world_size = 6}}};
  }
  void decide(const std::string& by) { client().set_first(kDecisionKey, encode(NetworkDecision{.by = by})); }

  store_server::StoreServer server_{{.listen_addresses = {"127.0.0.1"}}};
};

TEST_F(StepWatchTest, NothingIsSaidOfAGoodStep) {
  StepWatch watch(server_.port(), true, true);
  for (const char* name : {"n0", "n1", "n2"}) reporter(name);
  EXPECT_THAT(watch.lines(), IsEmpty());
  EXPECT_FALSE(watch.due());
}

TEST_F(StepWatchTest, TheFirstFailureIsSaidOnce) {
  StepWatch watch(server_.port(), true, true);
  for (const char* name : {"n0", "n1", "n2"}) reporter(name);
  StepStore store = client();
  store.set_first(end_key(4), encode(end_of(4, 0, 999'000)));
  store.set_first(kFailureKey, encode(end_of(1, exited(7))));
  store.set_first(kFailureKey, encode(end_of(2, SIGTERM)));
  ASSERT_TRUE(base::wait_for(watch.fd(), POLLIN, Deadline::after(std::chrono::seconds(60))));
  watch.note_failure();
  EXPECT_TRUE(watch.failed());
  ASSERT_TRUE(watch.due());
  EXPECT_THAT(watch.lines(), ElementsAre("srun --ddp: rank 1 on n0 failed with exit code 7; the step ends",
                                         HasSubstr("rank 4 on n2 ended with exit code 0 1.0 s before")));
  EXPECT_THAT(watch.lines(), IsEmpty());
}

TEST_F(StepWatchTest, NodesThatWereNeverHeardOfAreNamedBeforeTheConsequences) {
  {
    StepWatch watch(server_.port(), true, true);
    reporter("n0");
    reporter("n2");
    decide("");  // the step is being ended
    client().set_first(kFailureKey, encode(end_of(0, SIGTERM)));
    EXPECT_THAT(watch.lines(), ElementsAre(AllOf(HasSubstr("n1 did not take part"), Not(HasSubstr("n2")))));
  }
  reporter("n1");
  StepWatch watch(server_.port(), true, true);
  EXPECT_THAT(watch.lines(), ElementsAre(HasSubstr("rank 0 on n0 was ended by SIGTERM")));
}

TEST_F(StepWatchTest, WhereANetworkWasDecidedSilentNodesAreNamedAlready) {
  StepWatch watch(server_.port(), true, true);
  reporter("n0");
  decide("n0");
  EXPECT_THAT(watch.lines(), IsEmpty());
}

TEST_F(StepWatchTest, AStepWithoutAnyNodeIsToldAfterAWhileOnly) {
  StepWatch early(server_.port(), true, true);
  EXPECT_THAT(early.lines(), IsEmpty());
  StepWatch later(server_.port(), true, true);
  StepWatch components(server_.port(), true, false);
  std::this_thread::sleep_for(std::chrono::milliseconds(2100));
  EXPECT_THAT(later.lines(), ElementsAre(HasSubstr("no node of this step has reported")));
  EXPECT_THAT(components.lines(), IsEmpty());
}

/// A stop for each end would be paid by steps of many tasks: only what Slurm may cut short is waited for.
TEST(EndChannelTest, SlurmstepdAwaitsFailuresAndTheLastEnd) {
  EndChannel channel(3);
  const pid_t witness = ::fork();
  if (witness == 0) {
    const int fd = channel.witness_end();
    std::vector<std::uint64_t> awaited;
    for (bool ended = false; !ended && awaited.size() < 3;) {
      if (!base::wait_for(fd, POLLIN, Deadline::after(std::chrono::seconds(60)))) break;
      const TaskNews news = take_news(fd, ended);
      const auto* const end = std::get_if<TaskEnd>(&news);
      if (end == nullptr) continue;
      awaited.push_back(end->awaited);
      if (end->awaited != 0) confirm_end(fd);
    }
    ::_exit(awaited == std::vector<std::uint64_t>{0, 1, 1} ? 0 : 1);
  }
  channel.tell({.task = 2, .status = 0, .when_ms = 1});
  channel.tell({.task = 0, .status = exited(1), .when_ms = 2});
  channel.tell({.task = 1, .status = 0, .when_ms = 3});
  int status = -1;
  ASSERT_EQ(::waitpid(witness, &status, 0), witness);
  EXPECT_EQ(status, 0);
}

/// Tells a channel ends, from this process as slurmstepd, to a child as witness.
TEST_F(StepWatchTest, AnEndGoesFromSlurmstepdToTheStore) {
  auto channel = std::make_unique<EndChannel>(3);
  const pid_t witness = ::fork();
  if (witness == 0) {
    int status = 1;
    try {
      sigset_t termination;
      ::sigemptyset(&termination);
      ::sigaddset(&termination, SIGTERM);
      ::pthread_sigmask(SIG_BLOCK, &termination, nullptr);
      const int fd = channel->witness_end();
      // not that of slurmstepd, whose end would not be noticed
      for (int other = STDERR_FILENO + 1; other < 256; ++other) {
        if (other != fd) ::close(other);
      }
      reporter("n0", 4).run(fd, nullptr, nullptr);
      status = 0;
    } catch (const std::exception&) {
    }
    ::_exit(status);
  }
  StepStore store = client();
  ASSERT_TRUE(store.wait({presence_key("n0"), kStepKey}, Deadline::after(std::chrono::seconds(60))));
  EXPECT_LT(channel->witness_end(), 0) << "this is not a task";
  channel->tell({.task = 0, .status = 0, .when_ms = 5});
  channel->tell({.task = 1, .status = exited(9), .when_ms = 6});
  channel->tell({.task = 2, .status = 0, .when_ms = 7});
  ASSERT_TRUE(store.wait({end_key(4), kFailureKey, end_key(6)}, Deadline::after(std::chrono::seconds(60))));
  const RankEnd expected{.rank = 5, .status = exited(9), .when_ms = 6, .node = "n0"};
  EXPECT_EQ(decode_rank_end(store.get({kFailureKey}).front()), expected);
  ASSERT_EQ(::kill(witness, SIGTERM), 0);
  ASSERT_TRUE(store.wait({kDecisionKey}, Deadline::after(std::chrono::seconds(60))));
  EXPECT_TRUE(decode_decision(store.get({kDecisionKey}).front()).step_ends());
  channel.reset();
  int status = -1;
  ASSERT_EQ(::waitpid(witness, &status, 0), witness);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace ddp::srun_plugin
