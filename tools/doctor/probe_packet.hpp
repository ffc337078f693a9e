// What probes and their answers look like, for both sides.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include <ddp/bytes.hpp>

#include "base/byte_stream.hpp"

namespace ddp::tools::doctor {

inline constexpr std::size_t kTokenBytes = 16;
inline constexpr std::size_t kLargestPacket = 65536;

/// The token, then how many bytes have arrived behind the UDP header.
inline Bytes probe_reply(const Bytes& token, std::uint32_t arrived_bytes) {
  base::ByteWriter writer;
  writer.raw(token).integer(arrived_bytes);
  return std::move(writer).bytes();
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
