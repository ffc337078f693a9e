#include "doctor/packet_train.hpp"

#include <algorithm>

namespace ddp::tools::doctor {
namespace {

constexpr std::size_t kTrainBytes = 62'000;  // of what UDP takes at once
constexpr std::uint32_t kMostPackets = 40;   // of a train; Linux takes 64
constexpr std::uint32_t kFewestPackets = 4;  // that say anything
constexpr std::uint32_t kFewestIntervals = 3;

}  // namespace

PacketTrains::PacketTrains(std::int64_t rate_mbps, std::size_t packet_bytes, std::size_t header_bytes) {
  const std::size_t largest = kTrainBytes / kFewestPackets;
  payload_ = std::min(packet_bytes - std::min(packet_bytes, header_bytes), largest);
  packet_bits_ = static_cast<std::int64_t>((payload_ + header_bytes) * 8);
  settled_ = rate_mbps <= 0 || payload_ < kTokenBytes + sizeof(std::uint32_t);
  if (settled_) return;
  length_ = std::min(kMostPackets, static_cast<std::uint32_t>(kTrainBytes / payload_));
  enough_ = std::min(rate_mbps, kMostMeasurableMbps) / 2;
}

Bytes PacketTrains::next(const Bytes& token) {
  Bytes train;
  train.reserve(length_ * payload_);
  for (std::uint32_t i = 0; i < length_; ++i) {
    Bytes packet = probe_packet(token, static_cast<std::uint32_t>(sent_ + 1) << 8U | i);
    packet.resize(payload_);
    train.insert(train.end(), packet.begin(), packet.end());
  }
  ++sent_;
  return train;
}

void PacketTrains::answered(const ProbeReply& reply) {
  const std::uint32_t train = reply.number >> 8U;
  const std::uint32_t place = reply.number & 0xffU;
  if (settled_ || train == 0 || train > static_cast<std::uint32_t>(sent_) || place >= length_) return;
  if (reply.arrived_ns == 0) {  // its kernel does not tell
    settled_ = true;
    return;
  }
  if (train != train_) {
    train_ = train;
    first_ = place;
    first_at_ns_ = reply.arrived_ns;
  }
  if (place + 1 != length_) return;
  if (place >= first_ + kFewestIntervals) {
    const std::int64_t took_ns = std::max<std::int64_t>(reply.arrived_ns - first_at_ns_, 1);
    const std::int64_t mbps = (place - first_) * packet_bits_ * 1000 / took_ns;
    best_ = std::max(best_, std::clamp<std::int64_t>(mbps, 1, kMostMeasurableMbps));
  }
  settled_ = best_ >= enough_ || train == kMost;
}

}  // namespace ddp::tools::doctor
