#include "world/endpoint_record.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "base/byte_stream.hpp"

namespace ddp::world {
namespace {

constexpr std::uint8_t kVersion = 2;
constexpr std::uint8_t kIpv6 = 1;
constexpr std::uint8_t kFabric = 2;
constexpr std::uint8_t kRoutes = 4;

[[noreturn]] void reject(std::string cause, std::string hint) {
  throw Error{{.code = ErrorCode::protocol,
               .attempted = "reading an endpoint record",
               .cause = std::move(cause),
               .native = {},
               .ranks = {},
               .hint = std::move(hint)}};
}

void write(base::ByteWriter& writer, const topology::CandidateAddress& candidate) {
  const InterfaceAddress& address = candidate.address;
  std::array<std::byte, 16> bytes{};
  if (::inet_pton(address.ipv6 ? AF_INET6 : AF_INET, address.address.c_str(), bytes.data()) != 1) {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = "describing this rank to the others",
                 .cause = fmt::format("'{}' is not a numeric address", address.address),
                 .native = {},
                 .ranks = {},
                 .hint = {}}};
  }
  writer
      .integer(static_cast<std::uint8_t>((address.ipv6 ? kIpv6 : 0) | (candidate.fabric ? kFabric : 0) |
                                         (candidate.routes_to_peers ? kRoutes : 0)))
      .integer(static_cast<std::uint8_t>(address.prefix_length))
      .integer(candidate.rate_mbps)
      .raw(std::span{bytes}.first(address.ipv6 ? 16 : 4));
}

topology::CandidateAddress read_candidate(base::ByteReader& reader) {
  const auto flags = reader.integer<std::uint8_t>();
  topology::CandidateAddress candidate;
  candidate.address.ipv6 = (flags & kIpv6) != 0;
  candidate.fabric = (flags & kFabric) != 0;
  candidate.routes_to_peers = (flags & kRoutes) != 0;
  candidate.address.prefix_length = reader.integer<std::uint8_t>();
  candidate.rate_mbps = reader.integer<std::uint32_t>();
  if ((flags & ~(kIpv6 | kFabric | kRoutes)) != 0 ||
      candidate.address.prefix_length > (candidate.address.ipv6 ? 128 : 32)) {
    reject(fmt::format("an address has flags {} and prefix length {}", flags, candidate.address.prefix_length), {});
  }
  const auto bytes = reader.raw(candidate.address.ipv6 ? 16 : 4);
  std::array<char, INET6_ADDRSTRLEN> text{};
  ::inet_ntop(candidate.address.ipv6 ? AF_INET6 : AF_INET, bytes.data(), text.data(), text.size());
  candidate.address.address = text.data();
  return candidate;
}

Bytes encode_with(const EndpointRecord& record, std::size_t addresses) {
  base::ByteWriter writer;
  writer.integer(kVersion)
      .text(record.hostname)
      .integer(record.node_rank)
      .integer(record.channel_port)
      .raw(record.channel_token)
      .integer(static_cast<std::uint8_t>(addresses));
  for (std::size_t i = 0; i < addresses; ++i) write(writer, record.addresses[i]);
  return std::move(writer).bytes();
}

}  // namespace

Bytes encode(const EndpointRecord& record) {
  std::size_t addresses = std::min(record.addresses.size(), topology::kMostCandidates);
  Bytes bytes = encode_with(record, addresses);
  while (bytes.size() > kMaxEndpointRecordBytes && addresses > 1) bytes = encode_with(record, --addresses);
  if (bytes.size() > kMaxEndpointRecordBytes) {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = "describing this rank to the others",
                 .cause = fmt::format("the description needs {} bytes, {} are allowed; the host name is '{}'",
                                      bytes.size(), kMaxEndpointRecordBytes, record.hostname),
                 .native = {},
                 .ranks = {},
                 .hint = "shorten the host name"}};
  }
  return bytes;
}

EndpointRecord decode_endpoint_record(std::span<const std::byte> bytes) {
  base::ByteReader reader(bytes, "endpoint record");
  const auto version = reader.integer<std::uint8_t>();
  if (version != kVersion) {
    reject(fmt::format("it has version {}, this library knows {}", version, kVersion),
           "all ranks must run the same version of libddp");
  }
  EndpointRecord record;
  record.hostname = reader.text();
  record.node_rank = reader.integer<int>();
  record.channel_port = reader.integer<std::uint16_t>();
  const auto token = reader.raw(record.channel_token.size());
  std::copy(token.begin(), token.end(), record.channel_token.begin());
  const auto addresses = reader.integer<std::uint8_t>();
  if (addresses == 0 || addresses > topology::kMostCandidates) {
    reject(fmt::format("it has {} addresses, not 1 to {}", addresses, topology::kMostCandidates), {});
  }
  for (unsigned i = 0; i < addresses; ++i) record.addresses.push_back(read_candidate(reader));
  reader.expect_end();
  return record;
}

}  // namespace ddp::world
