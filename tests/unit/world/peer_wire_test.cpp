// Frames of the peer channel: a beginning is "not yet", garbage is refused, and sizes are limited.
#include "world/peer_wire.hpp"

#include "base/byte_stream.hpp"
#include "unit/kvs/rank_threads.hpp"

namespace ddp::world {
namespace {

using base::to_bytes;

PeerRequest sample_request(std::size_t body_size = 300) {
  PeerRequest request{.service = "group/ddp.0.world", .body = test::awkward_value(1, body_size)};
  for (std::size_t i = 0; i < request.token.size(); ++i) request.token[i] = static_cast<std::byte>(0xf0U + i);
  return request;
}

Bytes first(const Bytes& bytes, std::size_t size) {
  return {bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size)};
}

template <class Decode>
void expect_refused(const Bytes& bytes, Decode decode) {
  const Error error = test::thrown_by([&] { decode(bytes); });
  EXPECT_EQ(error.code(), ErrorCode::protocol);
}

TEST(PeerWire, RequestRoundTrip) {
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{300}, std::size_t{900'000}}) {
    const PeerRequest request = sample_request(size);
    const auto read = decode_peer_request(encode(request));
    ASSERT_TRUE(read);
    EXPECT_EQ(read->token, request.token);
    EXPECT_EQ(read->service, request.service);
    EXPECT_TRUE(read->body == request.body);
  }
}

TEST(PeerWire, TheTokenIsKnownBeforeThePayload) {
  const PeerRequest request = sample_request();
  const Bytes bytes = encode(request);
  for (std::size_t size = 0; size < kPeerRequestHeaderBytes; ++size)
    EXPECT_FALSE(decode_peer_token(first(bytes, size)));
  EXPECT_EQ(decode_peer_token(first(bytes, kPeerRequestHeaderBytes)), request.token);
  EXPECT_EQ(decode_peer_token(bytes), request.token);
}

TEST(PeerWire, AnswerRoundTrip) {
  for (const PeerStatus status : {PeerStatus::ok, PeerStatus::unknown_service, PeerStatus::failed, PeerStatus::busy}) {
    for (const std::size_t size : {std::size_t{0}, std::size_t{7}, std::size_t{kLargestPeerMessageBytes}}) {
      const PeerAnswer answer{.status = status, .body = test::awkward_value(2, size)};
      const auto read = decode_peer_answer(encode(answer));
      ASSERT_TRUE(read);
      EXPECT_EQ(read->status, status);
      EXPECT_TRUE(read->body == answer.body);
    }
  }
}

TEST(PeerWire, EveryBeginningIsIncomplete) {
  const Bytes request = encode(sample_request());
  for (std::size_t size = 0; size < request.size(); ++size) {
    EXPECT_FALSE(decode_peer_request(first(request, size))) << size;
  }
  const Bytes answer = encode(PeerAnswer{.status = PeerStatus::failed, .body = to_bytes("because")});
  for (std::size_t size = 0; size < answer.size(); ++size) {
    EXPECT_FALSE(decode_peer_answer(first(answer, size))) << size;
  }
}

TEST(PeerWire, BytesAfterTheEndAreRefused) {
  Bytes request = encode(sample_request());
  request.push_back(std::byte{0});
  expect_refused(request, decode_peer_request);
  Bytes answer = encode(PeerAnswer{.status = PeerStatus::ok});
  answer.push_back(std::byte{0});
  expect_refused(answer, decode_peer_answer);
}

TEST(PeerWire, AWrongMarkIsRefusedAtItsFirstByte) {
  const Bytes good = encode(sample_request());
  for (std::size_t i = 0; i < 4; ++i) {
    Bytes bad = good;
    bad[i] ^= std::byte{1};
    expect_refused(first(bad, i + 1), decode_peer_request);
    expect_refused(first(bad, i + 1), decode_peer_token);
    expect_refused(first(bad, i + 1), decode_peer_answer);
  }
  expect_refused(to_bytes("GET / HTTP/1.0\r\n\r\n"), decode_peer_request);
  expect_refused(to_bytes("SSH-2.0-scanner\r\n"), decode_peer_request);
}

TEST(PeerWire, SizesAreLimitedAsSoonAsTheyAreAnnounced) {
  const auto request_header = [](std::uint32_t size) {
    return base::ByteWriter().raw(to_bytes("DDP1")).raw(ChannelToken{}).integer(size).bytes();
  };
  const auto answer_header = [](std::uint32_t size) {
    return base::ByteWriter().raw(to_bytes("DDP1")).integer(std::uint8_t{0}).integer(size).bytes();
  };
  EXPECT_FALSE(decode_peer_request(request_header(kLargestPeerMessageBytes)));
  EXPECT_FALSE(decode_peer_answer(answer_header(kLargestPeerMessageBytes)));
  for (const std::uint32_t size : {kLargestPeerMessageBytes + 1, 0x7fffffffU, 0xffffffffU}) {
    expect_refused(request_header(size), decode_peer_request);
    expect_refused(request_header(size), decode_peer_token);
    expect_refused(answer_header(size), decode_peer_answer);
  }
}

TEST(PeerWire, PayloadsThatDoNotAddUpAreRefused) {
  const auto frame = [](const Bytes& payload) {
    return base::ByteWriter().raw(to_bytes("DDP1")).raw(ChannelToken{}).blob(payload).bytes();
  };
  expect_refused(frame({}), decode_peer_request);
  expect_refused(frame(to_bytes("abc")), decode_peer_request);
  expect_refused(frame(base::ByteWriter().text("service").bytes()), decode_peer_request);
  expect_refused(frame(base::ByteWriter().integer(0xffffffffU).bytes()), decode_peer_request);
  expect_refused(frame(base::ByteWriter().text("s").text("b").integer(std::uint8_t{0}).bytes()), decode_peer_request);
  EXPECT_TRUE(decode_peer_request(frame(base::ByteWriter().text("s").text("b").bytes())));
}

TEST(PeerWire, UnknownStatusIsRefused) {
  expect_refused(base::ByteWriter().raw(to_bytes("DDP1")).integer(std::uint8_t{4}).integer(std::uint32_t{0}).bytes(),
                 decode_peer_answer);
}

TEST(PeerWire, RandomBytesAreNeverARequest) {
  std::mt19937 random{12345};  // NOLINT(cert-msc51-cpp): the same bytes in every run
  for (int round = 0; round < 2000; ++round) {
    Bytes bytes(random() % 100 + 4);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random() & 0xffU);
    if (round % 2 == 0) {  // with the right mark, so that what follows is reached
      const Bytes mark = to_bytes("DDP1");
      std::copy(mark.begin(), mark.end(), bytes.begin());
    }
    try {
      EXPECT_FALSE(decode_peer_request(bytes));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::protocol);
    }
  }
}

}  // namespace
}  // namespace ddp::world
