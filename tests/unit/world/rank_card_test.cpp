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
                .address = "10.1.2.3",
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
    EXPECT_EQ(read.address, card.address);
    EXPECT_EQ(read.channel_port, card.channel_port);
    EXPECT_EQ(read.channel_token, card.channel_token);
  }
}

TEST(RankCard, FitsEvenWithTheLongestNames) {
  RankCard card = sample();
  card.hostname = std::string(64, 'h');  // HOST_NAME_MAX of Linux
  card.address = "2001:0db8:1111:2222:3333:4444:5555:6666%enp129s0f1np1";
  EXPECT_LE(encode(card).size(), kLargestCardBytes);
}

TEST(RankCard, TooLargeIsRefusedExactlyAboveTheLimit) {
  RankCard card = sample();
  const std::size_t rest = encode(card).size() - card.hostname.size();
  card.hostname = std::string(kLargestCardBytes - rest, 'h');
  EXPECT_EQ(encode(card).size(), kLargestCardBytes);
  card.hostname += 'h';
  const auto error = test::error_of([&] { encode(card); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error->what(), testing::HasSubstr("257 bytes"));
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
