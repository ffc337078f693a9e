// What probes and their answers look like, for both sides.
#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include <ddp/bytes.hpp>

#include "base/byte_stream.hpp"

namespace ddp::tools::doctor {

inline constexpr std::size_t kTokenBytes = 16;
inline constexpr std::size_t kLargestPacket = 65536;

/// What a packet begins with: the token, then a number for the sender.
inline Bytes probe_packet(const Bytes& token, std::uint32_t number) {
  base::ByteWriter writer;
  writer.raw(token).integer(number);
  return std::move(writer).bytes();
}

/// Behind the token.
struct ProbeReply {
  std::uint32_t arrived_bytes = 0;  ///< behind the UDP header
  std::uint32_t number = 0;         ///< the packet's
  std::int64_t arrived_ns = 0;      ///< by the receiving kernel's CLOCK_REALTIME; 0: it does not tell
};

inline Bytes probe_reply(const Bytes& token, const ProbeReply& reply) {
  base::ByteWriter writer;
  writer.raw(token).integer(reply.arrived_bytes).integer(reply.number).integer(reply.arrived_ns);
  return std::move(writer).bytes();
}
/// Nothing if it is none with @p token.
inline std::optional<ProbeReply> read_probe_reply(const Bytes& token, std::span<const std::byte> bytes) {
  if (bytes.size() != kTokenBytes + 16 || !std::equal(token.begin(), token.end(), bytes.begin())) return std::nullopt;
  base::ByteReader reader(bytes.subspan(kTokenBytes), "reply to a probe");
  ProbeReply reply;
  reply.arrived_bytes = reader.integer<std::uint32_t>();
  reply.number = reader.integer<std::uint32_t>();
  reply.arrived_ns = reader.integer<std::int64_t>();
  return reply;
}

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;  ///< 0: none

  /// Of a numeric address.
  static SocketAddress of(const std::string& address, std::uint16_t port);
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
};

}  // namespace ddp::tools::doctor
