#include "world/peer_wire.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/byte_stream.hpp"

namespace ddp::world {
namespace {

constexpr std::uint32_t kMagic = 0x31504444;  // "DDP1"
constexpr std::size_t kAnswerHeader = 4 + 1 + 4;

[[noreturn]] void refuse(std::string cause) {
  throw Error{{.code = ErrorCode::protocol,
               .attempted = "reading a message between ranks",
               .cause = std::move(cause),
               .hint = "another program, or another libddp version, is connecting to this port"}};
}

void check_magic(std::span<const std::byte> received) {
  const Bytes magic = base::ByteWriter().integer(kMagic).bytes();
  const std::size_t known = std::min(received.size(), magic.size());
  if (!std::equal(magic.begin(), magic.begin() + static_cast<std::ptrdiff_t>(known), received.begin())) {
    refuse("it does not begin with the mark of libddp");
  }
}

std::uint32_t read_size(base::ByteReader& reader) {
  const auto size = reader.integer<std::uint32_t>();
  if (size > kLargestPeerMessageBytes) refuse(fmt::format("it announces {} bytes", size));
  return size;
}

ChannelToken read_token(base::ByteReader& reader) {
  ChannelToken token;
  const auto bytes = reader.raw(token.size());
  std::copy(bytes.begin(), bytes.end(), token.begin());
  return token;
}

/// Whether the payload that begins after the reader's position is there in full.
bool payload_complete(base::ByteReader& reader) {
  const std::uint32_t size = read_size(reader);
  if (reader.left() > size) refuse(fmt::format("{} bytes follow its end", reader.left() - size));
  return reader.left() == size;
}

Bytes copy(std::span<const std::byte> bytes) { return {bytes.begin(), bytes.end()}; }

}  // namespace

Bytes encode(const PeerRequest& request) {
  const Bytes payload = base::ByteWriter().text(request.service).blob(request.body).bytes();
  return base::ByteWriter().integer(kMagic).raw(request.token).blob(payload).bytes();
}

Bytes encode(const PeerAnswer& answer) {
  return base::ByteWriter().integer(kMagic).integer(static_cast<std::uint8_t>(answer.status)).blob(answer.body).bytes();
}

std::optional<ChannelToken> decode_peer_token(std::span<const std::byte> received) {
  check_magic(received);
  if (received.size() < kPeerRequestHeaderBytes) return std::nullopt;
  base::ByteReader reader(received.subspan(4), "request of a peer");
  const ChannelToken token = read_token(reader);
  read_size(reader);
  return token;
}

std::optional<PeerRequest> decode_peer_request(std::span<const std::byte> received) {
  check_magic(received);
  if (received.size() < kPeerRequestHeaderBytes) return std::nullopt;
  base::ByteReader reader(received.subspan(4), "request of a peer");
  PeerRequest request;
  request.token = read_token(reader);
  if (!payload_complete(reader)) return std::nullopt;
  request.service = reader.text();
  request.body = copy(reader.blob());
  reader.expect_end();
  return request;
}

std::optional<PeerAnswer> decode_peer_answer(std::span<const std::byte> received) {
  check_magic(received);
  if (received.size() < kAnswerHeader) return std::nullopt;
  base::ByteReader reader(received.subspan(4), "answer of a peer");
  const auto status = reader.integer<std::uint8_t>();
  if (status > static_cast<std::uint8_t>(PeerStatus::busy)) refuse(fmt::format("it has status {}", status));
  if (!payload_complete(reader)) return std::nullopt;
  return PeerAnswer{.status = static_cast<PeerStatus>(status), .body = copy(reader.raw(reader.left()))};
}

}  // namespace ddp::world
