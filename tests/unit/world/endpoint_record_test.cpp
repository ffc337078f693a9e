// The record that every rank publishes: its size, and what it leaves out to keep it.
#include "world/endpoint_record.hpp"

#include "base/message.hpp"
#include "support/message_check.hpp"
#include "support/topology_samples.hpp"
#include "unit/kvs/rank_threads.hpp"

namespace ddp::world {
namespace {

constexpr std::size_t kMostBytes = 256;

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

TEST(EndpointRecord, IsAMessage) { tests::check_message<EndpointRecord>(); }

TEST(EndpointRecord, FitsEvenWithTheLongestNames) {
  EndpointRecord record = sample();
  record.hostname = std::string(64, 'h');  // HOST_NAME_MAX of Linux
  record.addresses.assign(topology::kMostCandidates, record.addresses[1]);
  EXPECT_LE(encode(record).size(), kMostBytes);
  EXPECT_EQ(base::decode<EndpointRecord>(encode(record)).addresses.size(), topology::kMostCandidates);
}

TEST(EndpointRecord, LongNamesCostTheLastAddresses) {
  EndpointRecord record = sample();
  record.addresses.assign(topology::kMostCandidates, record.addresses[1]);
  record.addresses[0] = sample().addresses[0];
  record.hostname = std::string(160, 'h');
  const EndpointRecord read = base::decode<EndpointRecord>(encode(record));
  EXPECT_EQ(read.hostname, record.hostname);
  EXPECT_LT(read.addresses.size(), topology::kMostCandidates);
  EXPECT_EQ(read.addresses.front(), record.addresses.front());
}

TEST(EndpointRecord, TooLargeIsRefusedExactlyAboveTheLimit) {
  EndpointRecord record = sample();
  record.addresses.resize(1);
  const std::size_t rest = encode(record).size() - record.hostname.size();
  record.hostname = std::string(kMostBytes - rest, 'h');
  EXPECT_EQ(encode(record).size(), kMostBytes);
  record.hostname += 'h';
  const Error error = test::thrown_by([&] { encode(record); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.what(), testing::HasSubstr("257 bytes"));
}

TEST(EndpointRecord, AddressesThatMakeNoSenseAreRefused) {
  EndpointRecord record = sample();
  record.addresses = {{.address = {.address = "eth0", .prefix_length = 24, .ipv6 = false}}};
  EXPECT_TRUE(test::error_of([&] { encode(record); }));

  record = sample();
  record.addresses.resize(1);
  const Bytes whole = encode(record);
  const std::size_t flags = whole.size() - 10;  // flags, prefix length, rate, four bytes
  for (const auto& [position, value] : {std::pair{flags, 0x80}, {flags + 1, 33}, {flags - 4, 0}, {flags - 4, 7}}) {
    Bytes damaged = whole;
    damaged[position] = static_cast<std::byte>(value);
    EXPECT_TRUE(test::error_of([&] { base::decode<EndpointRecord>(damaged); })) << position << " " << value;
  }
}

}  // namespace
}  // namespace ddp::world
