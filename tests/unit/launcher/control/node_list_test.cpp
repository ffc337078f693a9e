// The list of a job's nodes comes back as it was, is short for thousands of nodes, and is refused where it is wrong.
#include <fmt/ranges.h>

#include <ddp/error.hpp>

#include "control/connection.hpp"
#include "control/messages.hpp"
#include "support/error_of.hpp"

namespace ddp::launcher::control {
namespace {

NodeList nodes_named(const std::vector<std::string>& hosts) {
  NodeList nodes;
  for (const std::string& host : hosts)
    nodes.push_back({.host = host,
                     .nproc = 8,
                     .role = "default",
                     .socket_interface = "ib0",
                     .socket_reason = "all nodes have it, and it is a fabric"});
  return nodes;
}

NodeList returned(const NodeList& nodes) {
  const Bytes bytes = encode(PrepareAttempt{.nodes = nodes});
  return std::get<PrepareAttempt>(decode(bytes)).nodes;
}

std::vector<std::string> numbered(const std::string& format, int count) {
  std::vector<std::string> hosts;
  for (int i = 0; i < count; ++i) hosts.push_back(fmt::format(fmt::runtime(format), i));
  return hosts;
}

/// What decoding a plan with these bytes in place of its nodes says; empty: nothing.
std::string refusal_of(const std::vector<int>& bytes) {
  Bytes message = encode(PrepareAttempt{});
  message.resize(message.size() - encode_nodes({})->size());
  for (const int byte : bytes) message.push_back(static_cast<std::byte>(byte));
  try {
    decode(message);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::protocol);
    return error.what();
  }
  return {};
}

TEST(NodeList, ComesBackAsItWas) {
  for (const std::vector<std::string>& hosts : std::vector<std::vector<std::string>>{
           {},
           {"n1"},
           {""},
           {"n8", "n9", "n10", "n11"},
           {"n08", "n09", "n10"},
           {"n098", "n099", "n100", "n0101"},
           {"n1", "n1", "n2"},
           {"n3", "n2", "n1"},
           {"a", "ab", "abc", "b", "abc"},
           {"7", "8", "9", "10"},
           {"n999999999999999998", "n999999999999999999", "n1000000000000000000", "n1000000000000000001"},
           {std::string(255, 'x'), std::string(254, 'x') + "1", std::string(254, 'x') + "2"}}) {
    const NodeList nodes = nodes_named(hosts);
    EXPECT_EQ(returned(nodes), nodes) << fmt::format("{}", fmt::join(hosts, " "));
  }
}

TEST(NodeList, NodesThatDifferKeepWhatIsTheirs) {
  NodeList nodes = nodes_named(numbered("n{}", 200));
  nodes[0].addresses = {"10.0.0.1", "fe80::1"};
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (i % 3 == 1) nodes[i].nproc = 4;
    if (i % 5 == 2) nodes[i].role = "reader";
    if (i % 7 == 3) nodes[i].socket_interface = "eth0";
  }
  EXPECT_EQ(returned(nodes), nodes);
}

TEST(NodeList, IsShortForThousandsOfNodes) {
  constexpr int kNodes = 12'500;
  EXPECT_LT(encode_nodes(nodes_named(numbered("n{:05}", kNodes)))->size(), 256U);
  // None of these names follows the one before.
  EXPECT_LT(encode_nodes(nodes_named(numbered("gpu-{:05x}-x", kNodes)))->size(), 12U * kNodes);
  NodeList mixed = nodes_named(numbered("n{:05}", kNodes));
  for (std::size_t i = 0; i < mixed.size(); i += 2) mixed[i].role = "reader";
  EXPECT_LT(encode_nodes(mixed)->size(), 9U * kNodes);
}

TEST(NodeList, ManyPlansShareItsBytes) {
  const auto bytes = encode_nodes(nodes_named(numbered("gpu-{:05x}-x", 24'000)));
  ASSERT_GT(bytes->size(), 2 * kPieceBytes);
  ConnectionPair pair = make_pair();
  Connection sender{std::move(pair.first), "a node"};
  Connection receiver{std::move(pair.second), "the coordinator"};
  for (int more = 0; more < 3; ++more) {
    PrepareAttempt plan{.epoch = more, .node_rank = more, .run_id = std::string(static_cast<std::size_t>(more), 'r')};
    const Encoded message = encode_once(plan, bytes);
    EXPECT_EQ(message.rest, bytes);
    EXPECT_LT(message.bytes->size(), 200U);
    plan.nodes = nodes_named(numbered("gpu-{:05x}-x", 24'000));
    EXPECT_EQ(encode(message), encode(plan));
    sender.send(message);
    std::vector<Message> received;
    for (const Deadline limit = Deadline::after(std::chrono::seconds(60)); received.empty() && !limit.expired();) {
      sender.flush();
      received = receiver.receive();
    }
    ASSERT_EQ(received.size(), 1U);
    EXPECT_TRUE(received.front() == Message{plan});
  }
}

TEST(NodeList, TheLongestTextsOfTheMostNodesComeBack) {
  NodeList nodes = nodes_named(numbered("n{}", 65'536));
  for (NodeLayout& node : nodes) {
    node.role = node.socket_interface = std::string(255, 'x');
    node.socket_reason = std::string(511, 'x');
  }
  NodeList longer = nodes;
  for (NodeLayout& node : longer) node.socket_reason += "more";
  EXPECT_TRUE(returned(longer) == nodes);
}

TEST(NodeList, FewBytesDoNotBecomeMany) {
  NodeList nodes = nodes_named({"n0"});
  nodes[0].role = std::string(256, 'x');
  EXPECT_THAT(ddp::test::thrown_by([&] { returned(nodes); }).what(), HasSubstr("NodeLayout: 'role'"));
  // A layout with 100 addresses, all empty, for 65,536 nodes, in runs of 256.
  std::vector<int> bytes{1, 0, 0, 0, 0, 0, 0, 0, 100, 0, 0, 0};
  bytes.insert(bytes.end(), 4 * (100 + 4), 0);
  bytes.insert(bytes.end(), {0, 1, 0, 0});
  for (int run = 0; run < 256; ++run) bytes.insert(bytes.end(), {0, 1, 0, 0, 0, 0, 0, 0});
  EXPECT_THAT(refusal_of(bytes), HasSubstr("take more than 128 MiB"));
}

TEST(NodeList, MalformedOnesAreRefused) {
  // No layout, no run; then one layout of an empty node for two nodes, and what follows.
  EXPECT_EQ(refusal_of({0, 0, 0, 0, 0, 0, 0, 0}), "");
  const auto refusal = [](const std::vector<int>& hosts) {
    std::vector<int> bytes{1, 0, 0, 0};
    bytes.insert(bytes.end(), 24, 0);  // host, addresses, interface, nproc, role, reason
    for (const int byte : {1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0}) bytes.push_back(byte);
    bytes.insert(bytes.end(), hosts.begin(), hosts.end());
    return refusal_of(bytes);
  };
  EXPECT_EQ(refusal({0, 2, 'n', '1', 2}), "");
  EXPECT_THAT(refusal({0, 1, 'n', 2}), HasSubstr("a host's name without a number begins a range"));
  EXPECT_THAT(refusal({0, 2, 'n', '1', 3}), HasSubstr("more or fewer hosts than nodes"));
  EXPECT_THAT(refusal({0, 2, 'n', '1', 0}), HasSubstr("more or fewer hosts than nodes"));
  EXPECT_THAT(refusal({0, 2, 'n', '1', 1}), HasSubstr("the message ends after"));
  EXPECT_THAT(refusal({1, 1, 'n', 1, 0, 1, 'm', 1}), HasSubstr("continues one that is too short"));
  EXPECT_THAT(refusal({128, 128, 128, 128, 128, 0}), HasSubstr("a number in the list of nodes has no end"));
  EXPECT_THAT(refusal({0, 2, 'n', '/', 1}), HasSubstr("NodeLayout: 'host'"));
  // A run of a layout that is not there, of none, and of more nodes than any job has.
  EXPECT_THAT(refusal_of({0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0}), HasSubstr("of layout 0 of 0"));
  EXPECT_THAT(refusal_of({0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}), HasSubstr("a run of 0 nodes"));
  std::vector<NodeLayout> many(65'537);
  EXPECT_THAT(ddp::test::thrown_by([&] { decode(encode(PrepareAttempt{.nodes = NodeList{std::move(many)}})); }).what(),
              HasSubstr("the most are 65536 nodes"));
}

}  // namespace
}  // namespace ddp::launcher::control
