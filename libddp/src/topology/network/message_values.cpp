#include "topology/network/message_values.hpp"

#include <arpa/inet.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include <fmt/format.h>

#include <ddp/error.hpp>

namespace ddp::topology {
namespace {

constexpr std::uint8_t kIpv6 = 1;
constexpr std::uint8_t kFabric = 2;
constexpr std::uint8_t kRoutes = 4;

}  // namespace

void write_value(base::ByteWriter& writer, const CandidateAddress& candidate) {
  const InterfaceAddress& address = candidate.address;
  std::array<std::byte, 16> bytes{};
  if (::inet_pton(address.ipv6 ? AF_INET6 : AF_INET, address.address.c_str(), bytes.data()) != 1) {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = "describing the addresses of this host",
                 .cause = fmt::format("'{}' is not a numeric address", address.address)}};
  }
  writer
      .integer(static_cast<std::uint8_t>((address.ipv6 ? kIpv6 : 0) | (candidate.fabric ? kFabric : 0) |
                                         (candidate.routes_to_peers ? kRoutes : 0)))
      .integer(static_cast<std::uint8_t>(address.prefix_length))
      .integer(candidate.rate_mbps)
      .raw(std::span{bytes}.first(address.ipv6 ? 16 : 4));
}

void read_value(base::ByteReader& reader, CandidateAddress& candidate) {
  const auto flags = reader.integer<std::uint8_t>();
  candidate.address.ipv6 = (flags & kIpv6) != 0;
  candidate.fabric = (flags & kFabric) != 0;
  candidate.routes_to_peers = (flags & kRoutes) != 0;
  candidate.address.prefix_length = reader.integer<std::uint8_t>();
  candidate.rate_mbps = reader.integer<std::uint32_t>();
  if ((flags & ~(kIpv6 | kFabric | kRoutes)) != 0 ||
      candidate.address.prefix_length > (candidate.address.ipv6 ? 128 : 32)) {
    throw Error{
        {.code = ErrorCode::protocol,
         .attempted = "reading the addresses of a host",
         .cause = fmt::format("one has flags {} and prefix length {}", flags, candidate.address.prefix_length)}};
  }
  const auto bytes = reader.raw(candidate.address.ipv6 ? 16 : 4);
  std::array<char, INET6_ADDRSTRLEN> text{};
  ::inet_ntop(candidate.address.ipv6 ? AF_INET6 : AF_INET, bytes.data(), text.data(), text.size());
  candidate.address.address = text.data();
}

}  // namespace ddp::topology
