// A channel with a service, which tests ask as peers and reach as strangers.
#pragma once

#include "base/byte_stream.hpp"
#include "base/socket.hpp"
#include "unit/kvs/rank_threads.hpp"
#include "world/peer_channel.hpp"
#include "world/peer_questions.hpp"

namespace ddp::world {

inline PeerEndpoint endpoint_of(const PeerChannel& channel) {
  return {.rank = 0, .address = "127.0.0.1", .port = channel.port(), .token = channel.token()};
}

inline PeerReply ask(const PeerEndpoint& endpoint, const std::string& service, const Bytes& body = {},
                     std::chrono::milliseconds limit = std::chrono::seconds(10)) {
  return ask_peers({endpoint}, service, body, Deadline::after(limit)).at(0);
}

/// A channel with a service that sends back what it gets.
struct PeerChannelFixture : testing::Test {
  PeerChannelFixture() {
    channel_.serve("echo", [](std::span<const std::byte> body) { return Bytes(body.begin(), body.end()); });
  }
  base::UniqueFd stranger() { return base::connect_tcp("127.0.0.1", channel_.port(), test::soon()); }
  void expect_answered_within(std::chrono::milliseconds limit) {
    const auto begin = Deadline::Clock::now();
    const PeerReply reply = ask(endpoint_of(channel_), "echo", base::to_bytes("hello"), limit);
    EXPECT_EQ(reply.kind, PeerReply::Kind::answered) << reply.problem;
    EXPECT_EQ(base::to_text(reply.body), "hello");
    EXPECT_LT(Deadline::Clock::now() - begin, limit);
  }

  PeerChannel channel_{"127.0.0.1"};
};

}  // namespace ddp::world
