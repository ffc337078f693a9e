// The card that every rank publishes: round trip, size limit, and refusal of damaged ones.
#include "world/rank_card.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/byte_stream.hpp"
#include "unit/kvs/rank_threads.hpp"

namespace ddp::world {
namespace {

RankCard sample() {
  RankCard card{.hostname = "node-17.example.org",
                .node_rank = 4,
                .addresses = {{.address = {.address = "10.1.2.3", .prefix_length = 24, .ipv6 = false},
                               .fabric = true,
                               .routes_to_peers = false,
                               .rate_mbps = 400'000},
                              {.address = {.address = "2001:db8::7", .prefix_length = 64, .ipv6 = true},
                               .fabric = false,
                               .routes_to_peers = true,
                               .rate_mbps = 0}},
                .channel_port = 65'535,
                .channel_token = {}};
  for (std::size_t i = 0; i < card.channel_token.size(); ++i) {
    card.channel_token[i] = static_cast<std::byte>(i * 17 + 1);
  }
  return card;
}

TEST(RankCard, RoundTrip) {
  for (const int node_rank : {-1, 0, 4, 1'000'000}) {
    RankCard card = sample();
    card.node_rank = node_rank;
    const RankCard read = decode_rank_card(encode(card));
    EXPECT_EQ(read.hostname, card.hostname);
    EXPECT_EQ(read.node_rank, card.node_rank);
    EXPECT_EQ(read.addresses, card.addresses);
    EXPECT_EQ(read.channel_port, card.channel_port);
    EXPECT_EQ(read.channel_token, card.channel_token);
  }
}

TEST(RankCard, FitsEvenWithTheLongestNames) {
  RankCard card = sample();
  card.hostname = std::string(64, 'h');  // HOST_NAME_MAX of Linux
  card.addresses.assign(topology::kMostCandidates, card.addresses[1]);
  EXPECT_LE(encode(card).size(), kLargestCardBytes);
  EXPECT_EQ(decode_rank_card(encode(card)).addresses.size(), topology::kMostCandidates);
}

TEST(RankCard, LongNamesCostTheLastAddresses) {
  RankCard card = sample();
  card.addresses.assign(topology::kMostCandidates, card.addresses[1]);
  card.addresses[0] = sample().addresses[0];
  card.hostname = std::string(160, 'h');
  const RankCard read = decode_rank_card(encode(card));
  EXPECT_EQ(read.hostname, card.hostname);
  EXPECT_LT(read.addresses.size(), topology::kMostCandidates);
  EXPECT_EQ(read.addresses.front(), card.addresses.front());
}

TEST(RankCard, TooLargeIsRefusedExactlyAboveTheLimit) {
  RankCard card = sample();
  card.addresses.resize(1);
  const std::size_t rest = encode(card).size() - card.hostname.size();
  card.hostname = std::string(kLargestCardBytes - rest, 'h');
  EXPECT_EQ(encode(card).size(), kLargestCardBytes);
  card.hostname += 'h';
  const auto error = test::error_of([&] { encode(card); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error->what(), testing::HasSubstr("257 bytes"));
}

TEST(RankCard, AddressesThatMakeNoSenseAreRefused) {
  RankCard card = sample();
  card.addresses = {{.address = {.address = "eth0", .prefix_length = 24, .ipv6 = false}}};
  EXPECT_TRUE(test::error_of([&] { encode(card); }));

  card = sample();
  card.addresses.resize(1);
  const Bytes whole = encode(card);
  const std::size_t flags = whole.size() - 10;  // flags, prefix length, rate, four bytes
  for (const auto& [position, value] : {std::pair{flags, 0x80}, {flags + 1, 33}, {flags - 1, 0}, {flags - 1, 7}}) {
    Bytes damaged = whole;
    damaged[position] = static_cast<std::byte>(value);
    EXPECT_TRUE(test::error_of([&] { decode_rank_card(damaged); })) << position << " " << value;
  }
}

TEST(RankCard, DamagedCardsAreRefused) {
  const Bytes whole = encode(sample());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    const auto error = test::error_of([&] { decode_rank_card(cut); });
    ASSERT_TRUE(error) << size;
    EXPECT_EQ(error->code(), ErrorCode::protocol);
  }
  Bytes longer = whole;
  longer.push_back(std::byte{0});
  EXPECT_TRUE(test::error_of([&] { decode_rank_card(longer); }));
  Bytes huge_name = whole;
  for (std::size_t i = 1; i < 5; ++i) huge_name[i] = std::byte{0xff};
  EXPECT_TRUE(test::error_of([&] { decode_rank_card(huge_name); }));
}

TEST(RankCard, OtherVersionsAreNamed) {
  Bytes bytes = encode(sample());
  bytes[0] = std::byte{9};
  const auto error = test::error_of([&] { decode_rank_card(bytes); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::protocol);
  EXPECT_THAT(error->what(), testing::HasSubstr("version 9"));
}

}  // namespace
}  // namespace ddp::world
