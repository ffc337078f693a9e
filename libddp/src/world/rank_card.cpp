#include "world/rank_card.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/byte_stream.hpp"

namespace ddp::world {
namespace {

constexpr std::uint8_t kVersion = 1;

}  // namespace

Bytes encode(const RankCard& card) {
  Bytes bytes = base::ByteWriter()
                    .integer(kVersion)
                    .text(card.hostname)
                    .integer(card.node_rank)
                    .text(card.address)
                    .integer(card.channel_port)
                    .raw(card.channel_token)
                    .bytes();
  if (bytes.size() > kLargestCardBytes) {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = "describing this rank to the others",
                 .cause = fmt::format("the description needs {} bytes, {} are allowed; the host name is '{}'",
                                      bytes.size(), kLargestCardBytes, card.hostname),
                 .native = {},
                 .ranks = {},
                 .hint = "shorten the host name"}};
  }
  return bytes;
}

RankCard decode_rank_card(std::span<const std::byte> bytes) {
  base::ByteReader reader(bytes, "rank card");
  const auto version = reader.integer<std::uint8_t>();
  if (version != kVersion) {
    throw Error{{.code = ErrorCode::protocol,
                 .attempted = "reading a rank card",
                 .cause = fmt::format("it has version {}, this library knows {}", version, kVersion),
                 .native = {},
                 .ranks = {},
                 .hint = "all ranks must run the same version of libddp"}};
  }
  RankCard card;
  card.hostname = reader.text();
  card.node_rank = reader.integer<int>();
  card.address = reader.text();
  card.channel_port = reader.integer<std::uint16_t>();
  const auto token = reader.raw(card.channel_token.size());
  std::copy(token.begin(), token.end(), card.channel_token.begin());
  reader.expect_end();
  return card;
}

}  // namespace ddp::world
