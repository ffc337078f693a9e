// What a path between nodes lets through: packets that leave together arrive further apart the slower its slowest link
// is. A train is at most 64 KiB, so that it disturbs no job. Waiting processors and other traffic spread trains, too,
// so the fastest of a few counts; a receiver that takes packets in batches makes all look faster than they are.
#pragma once

#include <cstddef>
#include <cstdint>

#include <ddp/bytes.hpp>

#include "doctor/probe_packet.hpp"

namespace ddp::tools::doctor {

/// Above this, what receiving costs hides the link.
inline constexpr std::int64_t kMostMeasurableMbps = 4000;

class PacketTrains {
 public:
  static constexpr int kMost = 5;

  /// @param rate_mbps of the slower of both interfaces; 0 if unknown: there is nothing to compare with, so none is
  /// sent.
  /// @param packet_bytes that both interfaces take, with @p header_bytes of IP and UDP.
  PacketTrains(std::int64_t rate_mbps, std::size_t packet_bytes, std::size_t header_bytes);

  /// No more is to be sent.
  bool settled() const noexcept { return settled_; }
  /// Packets of one train, one behind the other, each of packet_size() bytes.
  Bytes next(const Bytes& token);
  std::size_t packet_size() const noexcept { return payload_; }

  void answered(const ProbeReply& reply);

  /// Mbit/s of the fastest train, at most kMostMeasurableMbps; 0 if none has arrived.
  std::int64_t mbps() const noexcept { return best_; }

 private:
  std::size_t payload_ = 0;
  std::int64_t packet_bits_ = 0;
  std::uint32_t length_ = 0;
  std::int64_t enough_ = 0;
  int sent_ = 0;
  bool settled_ = false;
  std::int64_t best_ = 0;
  std::uint32_t train_ = 0;  ///< of which answers come
  std::uint32_t first_ = 0;  ///< of its packets
  std::int64_t first_at_ns_ = 0;
};

}  // namespace ddp::tools::doctor
