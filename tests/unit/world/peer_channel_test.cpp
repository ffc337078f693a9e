// The answering side of the peer channel: peers are answered, unauthenticated clients are dropped, and no number of
// them keeps a peer waiting.
#include "world/peer_channel.hpp"

#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <ctime>

#include "base/byte_stream.hpp"
#include "base/socket.hpp"
#include "unit/kvs/rank_threads.hpp"
#include "unit/world/peer_channel_fixture.hpp"
#include "world/peer_questions.hpp"

namespace ddp::world {
namespace {

using base::to_bytes;
using test::soon;
using Kind = PeerReply::Kind;

class PeerChannelTest : public PeerChannelFixture {};

TEST_F(PeerChannelTest, AnswersWhatItIsAsked) {
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{5000}, std::size_t{1'000'000}}) {
    const Bytes body = test::awkward_value(0, size);
    const PeerReply reply = ask(endpoint_of(channel_), "echo", body);
    ASSERT_EQ(reply.kind, Kind::answered) << reply.problem;
    EXPECT_TRUE(reply.body == body);
  }
}

TEST_F(PeerChannelTest, TokensAreRandom) {
  const PeerChannel other{"127.0.0.1"};
  EXPECT_NE(channel_.token(), other.token());
  EXPECT_NE(channel_.token(), ChannelToken{});
  EXPECT_NE(channel_.port(), other.port());
}

TEST_F(PeerChannelTest, AWrongTokenIsHungUpOn) {
  std::atomic<int> calls{0};
  channel_.serve("count", [&](std::span<const std::byte>) {
    ++calls;
    return Bytes{};
  });
  for (std::size_t i = 0; i < sizeof(ChannelToken); ++i) {
    PeerEndpoint endpoint = endpoint_of(channel_);
    endpoint.token[i] ^= std::byte{0x80};
    EXPECT_EQ(ask(endpoint, "count").kind, Kind::hung_up);
  }
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(ask(endpoint_of(channel_), "count").kind, Kind::answered);
  EXPECT_EQ(calls, 1);
}

TEST_F(PeerChannelTest, UnknownServicesAndFailuresAreSaid) {
  channel_.serve("broken", [](std::span<const std::byte>) -> Bytes { throw std::runtime_error("out of order"); });
  const PeerReply broken = ask(endpoint_of(channel_), "broken");
  EXPECT_EQ(broken.kind, Kind::failed);
  EXPECT_EQ(broken.problem, "out of order");
  const PeerReply unknown = ask(endpoint_of(channel_), "no such service");
  EXPECT_EQ(unknown.kind, Kind::failed);
  EXPECT_FALSE(unknown.problem.empty());
}

TEST_F(PeerChannelTest, AServiceCanBeReplacedAndWithdrawn) {
  channel_.serve("echo", [](std::span<const std::byte>) { return to_bytes("second"); });
  EXPECT_EQ(base::to_text(ask(endpoint_of(channel_), "echo").body), "second");
  channel_.unserve("echo");
  EXPECT_EQ(ask(endpoint_of(channel_), "echo").kind, Kind::failed);
}

TEST_F(PeerChannelTest, AfterUnserveTheHandlerDoesNotRun) {
  std::atomic<bool> withdrawn{false};
  std::atomic<bool> called_late{false};
  channel_.serve("slow", [&](std::span<const std::byte>) {
    std::this_thread::sleep_for(milliseconds(30));
    if (withdrawn) called_late = true;
    return Bytes{};
  });
  std::thread asker([&] {
    for (int i = 0; i < 10; ++i) ask(endpoint_of(channel_), "slow");
  });
  std::this_thread::sleep_for(milliseconds(80));
  channel_.unserve("slow");
  withdrawn = true;
  asker.join();
  EXPECT_FALSE(called_late);
}

TEST_F(PeerChannelTest, PeersThatGiveUpInTheMiddleDoNoHarm) {
  const Bytes request =
      encode(PeerRequest{.token = channel_.token(), .service = "echo", .body = test::awkward_value(0, 100'000)});
  for (std::size_t part = 0; part < request.size(); part += 7001) {
    const base::UniqueFd fd = stranger();
    base::send_all(fd.get(), std::span(request).first(part), soon(), "sending a part");
  }
  expect_answered_within(seconds(2));
}

TEST_F(PeerChannelTest, ARequestMayComeInPieces) {
  const Bytes request =
      encode(PeerRequest{.token = channel_.token(), .service = "echo", .body = to_bytes("bit by bit")});
  const base::UniqueFd fd = stranger();
  for (std::size_t i = 0; i < request.size(); ++i) {
    base::send_all(fd.get(), std::span(request).subspan(i, 1), soon(), "sending a byte");
    std::this_thread::sleep_for(milliseconds(1));
  }
  const Bytes expected = encode(PeerAnswer{.status = PeerStatus::ok, .body = to_bytes("bit by bit")});
  Bytes answer(expected.size());
  base::receive_exactly(fd.get(), answer, soon(), "reading the answer");
  EXPECT_EQ(answer, expected);
}

// Defences must not cost peers that connect all at once: all ranks of a job ask when something fails.
TEST_F(PeerChannelTest, ManyPeersAtOnceAreAllAnswered) {
  constexpr int kAskers = 4;
  const std::vector<PeerEndpoint> endpoints(200, endpoint_of(channel_));
  std::atomic<int> answered{0};
  test::run_ranks(kAskers, [&](int) {
    for (const PeerReply& reply : ask_peers(endpoints, "echo", to_bytes("x"), Deadline::after(seconds(30)))) {
      EXPECT_EQ(reply.kind, Kind::answered) << reply.problem;
      if (reply.kind == Kind::answered) ++answered;
    }
  });
  EXPECT_EQ(answered, kAskers * 200);
}

// A training process may use up its descriptors. Then accept fails, but the channel must not burn a core.
TEST_F(PeerChannelTest, WithoutDescriptorsItWaitsAndThenAnswers) {
  const Bytes request = encode(PeerRequest{.token = channel_.token(), .service = "echo"});
  const base::UniqueFd client{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{.rlim_cur = static_cast<rlim_t>(client.get()) + 1, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(channel_.port());
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const std::clock_t begin = std::clock();
  const int connected = ::connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  std::this_thread::sleep_for(milliseconds(600));
  const double used = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_EQ(connected, 0);
  EXPECT_LT(used, 0.03) << "seconds of processor time";

  base::send_all(client.get(), request, soon(), "asking");
  Bytes answer(encode(PeerAnswer{.status = PeerStatus::ok}).size());
  ::fcntl(client.get(), F_SETFL, O_NONBLOCK);
  EXPECT_NO_THROW(base::receive_exactly(client.get(), answer, soon(3000), "reading the answer"));
}

TEST_F(PeerChannelTest, ServicesMayChangeWhileOthersAsk) {
  std::atomic<bool> stop{false};
  std::thread changer([&] {
    while (!stop) {
      channel_.serve("flickering", [](std::span<const std::byte>) { return Bytes{}; });
      channel_.unserve("flickering");
    }
  });
  for (int i = 0; i < 100; ++i) {
    const Kind kind = ask(endpoint_of(channel_), "flickering").kind;
    EXPECT_TRUE(kind == Kind::answered || kind == Kind::failed);
  }
  stop = true;
  changer.join();
}

}  // namespace
}  // namespace ddp::world
