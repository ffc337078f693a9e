// The record that every rank publishes: round trip, size limit, and refusal of damaged ones.
#include "world/endpoint_record.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/byte_stream.hpp"
#include "unit/kvs/rank_threads.hpp"

namespace ddp::world {
namespace {

EndpointRecord sample() {
  EndpointRecord record{.hostname = "node-17.example.org",
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
                        .process = {.pid = 4'194'303, .space = 4'026'531'836}};
  for (std::size_t i = 0; i < record.channel_token.size(); ++i) {
    record.channel_token[i] = static_cast<std::byte>(i * 17 + 1);
  }
  return record;
}

TEST(EndpointRecord, RoundTrip) {
  for (const int node_rank : {-1, 0, 4, 1'000'000}) {
    EndpointRecord record = sample();
    record.node_rank = node_rank;
    const EndpointRecord read = decode_endpoint_record(encode(record));
    EXPECT_EQ(read.hostname, record.hostname);
    EXPECT_EQ(read.node_rank, record.node_rank);
    EXPECT_EQ(read.addresses, record.addresses);
    EXPECT_EQ(read.channel_port, record.channel_port);
    EXPECT_EQ(read.channel_token, record.channel_token);
    EXPECT_EQ(read.process, record.process);
  }
}

TEST(EndpointRecord, FitsEvenWithTheLongestNames) {
  EndpointRecord record = sample();
  record.hostname = std::string(64, 'h');  // HOST_NAME_MAX of Linux
  record.addresses.assign(topology::kMostCandidates, record.addresses[1]);
  EXPECT_LE(encode(record).size(), kMaxEndpointRecordBytes);
  EXPECT_EQ(decode_endpoint_record(encode(record)).addresses.size(), topology::kMostCandidates);
}

TEST(EndpointRecord, LongNamesCostTheLastAddresses) {
  EndpointRecord record = sample();
  record.addresses.assign(topology::kMostCandidates, record.addresses[1]);
  record.addresses[0] = sample().addresses[0];
  record.hostname = std::string(160, 'h');
  const EndpointRecord read = decode_endpoint_record(encode(record));
  EXPECT_EQ(read.hostname, record.hostname);
  EXPECT_LT(read.addresses.size(), topology::kMostCandidates);
  EXPECT_EQ(read.addresses.front(), record.addresses.front());
}

TEST(EndpointRecord, TooLargeIsRefusedExactlyAboveTheLimit) {
  EndpointRecord record = sample();
  record.addresses.resize(1);
  const std::size_t rest = encode(record).size() - record.hostname.size();
  record.hostname = std::string(kMaxEndpointRecordBytes - rest, 'h');
  EXPECT_EQ(encode(record).size(), kMaxEndpointRecordBytes);
  record.hostname += 'h';
  const auto error = test::error_of([&] { encode(record); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error->what(), testing::HasSubstr("257 bytes"));
}

TEST(EndpointRecord, AddressesThatMakeNoSenseAreRefused) {
  EndpointRecord record = sample();
  record.addresses = {{.address = {.address = "eth0", .prefix_length = 24, .ipv6 = false}}};
  EXPECT_TRUE(test::error_of([&] { encode(record); }));

  record = sample();
  record.addresses.resize(1);
  const Bytes whole = encode(record);
  const std::size_t flags = whole.size() - 10;  // flags, prefix length, rate, four bytes
  for (const auto& [position, value] : {std::pair{flags, 0x80}, {flags + 1, 33}, {flags - 1, 0}, {flags - 1, 7}}) {
    Bytes damaged = whole;
    damaged[position] = static_cast<std::byte>(value);
    EXPECT_TRUE(test::error_of([&] { decode_endpoint_record(damaged); })) << position << " " << value;
  }
}

TEST(EndpointRecord, DamagedCardsAreRefused) {
  const Bytes whole = encode(sample());
  for (std::size_t size = 0; size < whole.size(); ++size) {
    const Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size));
    const auto error = test::error_of([&] { decode_endpoint_record(cut); });
    ASSERT_TRUE(error) << size;
    EXPECT_EQ(error->code(), ErrorCode::protocol);
  }
  Bytes longer = whole;
  longer.push_back(std::byte{0});
  EXPECT_TRUE(test::error_of([&] { decode_endpoint_record(longer); }));
  Bytes huge_name = whole;
  for (std::size_t i = 1; i < 5; ++i) huge_name[i] = std::byte{0xff};
  EXPECT_TRUE(test::error_of([&] { decode_endpoint_record(huge_name); }));
}

TEST(EndpointRecord, OtherVersionsAreNamed) {
  Bytes bytes = encode(sample());
  bytes[0] = std::byte{9};
  const auto error = test::error_of([&] { decode_endpoint_record(bytes); });
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::protocol);
  EXPECT_THAT(error->what(), testing::HasSubstr("version 9"));
}

}  // namespace
}  // namespace ddp::world
