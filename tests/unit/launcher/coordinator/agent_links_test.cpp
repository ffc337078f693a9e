// The coordinator's connections to its agents: what a dropped one still gets, and what it costs the others.
#include "coordinator/agent_links.hpp"

#include "base/socket.hpp"

namespace ddp::launcher {
namespace {

struct AgentLinksTest : testing::Test {
  /// A link and the agent's end of it.
  int add(std::vector<control::Connection>& agents) {
    control::ConnectionPair pair = control::make_pair();
    agents.emplace_back(std::move(pair.second), "the coordinator");
    return links_.add(control::Connection{std::move(pair.first), "an agent"});
  }

  stream::EventLoop loop_;
  AgentLinks links_{loop_, {}, [](int, const control::Message&) {}, [](int, const AgentLinks::Loss&) {}};
};

TEST_F(AgentLinksTest, DroppedAgentsThatReadNothingAreWaitedForTogetherAndNotInTheLoop) {
  constexpr int kAgents = 60;
  std::vector<control::Connection> agents;
  std::vector<int> numbers;
  control::Fence fence;
  fence.data.resize(std::size_t{2} << 20U);  // more than a socket takes
  for (int i = 0; i < kAgents; ++i) {
    numbers.push_back(add(agents));
    links_.send(numbers.back(), fence);
  }
  const auto began = Deadline::Clock::now();
  for (const int number : numbers) {
    links_.send(number, control::Finish{.exit_status = 1});
    links_.drop(number);
  }
  EXPECT_LT(Deadline::Clock::now() - began, 10s) << "200 ms for each would be 12 s";
  EXPECT_TRUE(links_.empty());
  EXPECT_TRUE(links_.next_deadline());
  for (const Deadline limit = Deadline::after(20s); links_.next_deadline() && !limit.expired();) {
    loop_.run_once(links_.next_deadline().value());
    links_.time_passed();
  }
  EXPECT_FALSE(links_.next_deadline()) << "they have been given up";
}

TEST_F(AgentLinksTest, ADroppedAgentThatReadsLateGetsItsLastMessage) {
  std::vector<control::Connection> agents;
  const int number = add(agents);
  control::Fence fence;
  fence.data.resize(std::size_t{300} << 10U);
  links_.send(number, fence);
  links_.send(number, control::Finish{.exit_status = 7, .message = "bye"});
  links_.drop(number);
  std::vector<control::Message> received;
  for (const Deadline limit = Deadline::after(20s); received.size() < 2 && agents[0].open() && !limit.expired();) {
    for (auto& message : agents[0].receive()) received.push_back(std::move(message));
    links_.time_passed();
  }
  ASSERT_EQ(received.size(), 2U);
  EXPECT_EQ(std::get<control::Finish>(received[1]).exit_status, 7);
}

}  // namespace
}  // namespace ddp::launcher
