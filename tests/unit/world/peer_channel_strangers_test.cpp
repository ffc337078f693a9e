// Who reaches a rank's port without its token: hung up on, at the cost of some bytes, without keeping peers waiting.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "base/byte_stream.hpp"
#include "base/errors.hpp"
#include "base/socket.hpp"
#include "support/outer_address.hpp"
#include "unit/kvs/rank_threads.hpp"
#include "unit/world/peer_channel_fixture.hpp"
#include "world/peer_channel.hpp"
#include "world/peer_questions.hpp"

namespace ddp::world {
namespace {

using base::to_bytes;
using test::soon;
using Kind = PeerReply::Kind;

class PeerChannelStrangers : public PeerChannelFixture {};

/// Whether the other side closes @p fd before the deadline without having sent anything.
bool hung_up(int fd, Deadline deadline) {
  std::byte byte{};
  const auto error = test::error_of([&] { base::receive_exactly(fd, {&byte, 1}, deadline, "waiting for the end"); });
  return error && error->code() == ErrorCode::peer_lost;
}

TEST_F(PeerChannelStrangers, StrangersWithRandomBytesAreHungUpOn) {
  std::mt19937 random{99};  // NOLINT(cert-msc51-cpp): the same bytes in every run
  for (int round = 0; round < 50; ++round) {
    const base::UniqueFd fd = stranger();
    Bytes bytes(random() % 2000 + 1);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() & 0xffU);
    bytes[0] = std::byte{'G'};
    try {
      base::send_all(fd.get(), bytes, soon(), "sending garbage");
    } catch (const Error&) {  // it may hang up before all is sent
    }
    EXPECT_TRUE(hung_up(fd.get(), soon(3000)));
  }
  expect_answered_within(seconds(2));
}

TEST_F(PeerChannelStrangers, ScannersThatConnectAndCloseDoNoHarm) {
  for (int round = 0; round < 500; ++round) stranger();
  expect_answered_within(seconds(2));
}

TEST_F(PeerChannelStrangers, SilentStrangersAreHungUpOnAfterAWhile) {
  const base::UniqueFd silent = stranger();
  EXPECT_TRUE(hung_up(silent.get(), soon(9000)));
}

// Slow loris: idle connections fill the channel's table, and a peer is behind them in the queue.
TEST_F(PeerChannelStrangers, IdleStrangersDoNotKeepAPeerWaiting) {
  std::vector<base::UniqueFd> idle;
  for (int i = 0; i < 200; ++i) idle.push_back(stranger());
  expect_answered_within(milliseconds(2500));
}

TEST_F(PeerChannelStrangers, StrangersThatTrickleTheMarkDoNotKeepAPeerWaiting) {
  std::vector<base::UniqueFd> idle;
  const Bytes mark = to_bytes("DDP1");
  for (int i = 0; i < 200; ++i) {
    idle.push_back(stranger());
    base::send_all(idle.back().get(), mark, soon(), "sending the mark");
  }
  expect_answered_within(milliseconds(2500));
}

/// A connection to @p port from @p address.
base::UniqueFd connect_from(const std::string& address, std::uint16_t port) {
  base::UniqueFd fd{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  sockaddr_in own{};
  own.sin_family = AF_INET;
  own.sin_addr.s_addr = ::inet_addr(address.c_str());
  sockaddr_in target = own;
  target.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  target.sin_port = htons(port);
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&own), sizeof own) != 0 ||
      ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&target), sizeof target) != 0) {
    throw base::system_error("connecting", errno);
  }
  ::fcntl(fd.get(), F_SETFL, O_NONBLOCK);
  return fd;
}

TEST_F(PeerChannelStrangers, AreHungUpOnBeforeTheirPayloadIsRead) {
  PeerRequest request{.token = channel_.token(), .service = "echo", .body = Bytes(900'000)};
  request.token[15] ^= std::byte{1};
  const Bytes bytes = encode(request);
  const base::UniqueFd fd = stranger();
  base::send_all(fd.get(), std::span(bytes).first(kPeerRequestHeaderBytes), soon(), "sending the header");
  EXPECT_TRUE(hung_up(fd.get(), soon(3000)));
}

// A share of the places for each source: a slow peer is not crowded out by strangers on another host.
TEST_F(PeerChannelStrangers, DoNotCrowdOutThoseOfOtherSources) {
  const std::string address = test::outer_address();
  if (address.empty()) GTEST_SKIP() << "this host has loopback addresses only";
  const base::UniqueFd peer = connect_from(address, channel_.port());
  std::vector<base::UniqueFd> crowd;
  for (int i = 0; i < 400; ++i) crowd.push_back(stranger());
  std::this_thread::sleep_for(milliseconds(700));
  const Bytes request = encode(PeerRequest{.token = channel_.token(), .service = "echo", .body = to_bytes("slow")});
  base::send_all(peer.get(), request, soon(), "asking");
  Bytes answer(encode(PeerAnswer{.status = PeerStatus::ok, .body = to_bytes("slow")}).size());
  EXPECT_NO_THROW(base::receive_exactly(peer.get(), answer, soon(3000), "reading the answer"));
}

TEST_F(PeerChannelStrangers, AreToldThatItIsBusyWhenTheyAreCrowdedOut) {
  const base::UniqueFd first = stranger();
  std::vector<base::UniqueFd> crowd;
  for (int i = 0; i < 200; ++i) crowd.push_back(stranger());
  const Bytes busy = encode(PeerAnswer{.status = PeerStatus::busy});
  Bytes answer(busy.size());
  base::receive_exactly(first.get(), answer, soon(3000), "reading the answer");
  EXPECT_EQ(answer, busy);
  EXPECT_TRUE(hung_up(first.get(), soon(3000)));
}

TEST_F(PeerChannelStrangers, WhoConnectAllTheTimeDoNotKeepAPeerWaiting) {
  std::atomic<bool> stop{false};
  std::atomic<int> connected{0};
  std::thread flood([&] {
    std::vector<base::UniqueFd> held(150);
    for (std::size_t i = 0; !stop; ++i) {
      try {
        held[i % held.size()] = stranger();
        ++connected;
      } catch (const Error&) {  // the queue is full
      }
    }
  });
  for (int i = 0; i < 20; ++i) {
    const int before = connected;
    for (const Deadline limit = soon(); connected < before + 200 && !limit.expired();) std::this_thread::yield();
    expect_answered_within(seconds(5));
  }
  stop = true;
  flood.join();
}

}  // namespace
}  // namespace ddp::world
