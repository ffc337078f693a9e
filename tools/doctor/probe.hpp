// Packets between nodes: whether an address is reached, whether packets as large as its interface's MTU arrive, and how
// fast.
#pragma once

#include <sys/socket.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ddp/bytes.hpp>
#include <ddp/deadline.hpp>

#include "base/byte_stream.hpp"
#include "doctor/facts.hpp"

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

// What a path between nodes lets through: packets that leave together arrive further apart the slower its slowest link
// is. A train is at most 64 KiB, so that it disturbs no job. Waiting processors and other traffic spread trains, too,
// so the fastest of a few counts; a receiver that takes packets in batches makes all look faster than they are.

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
  /// Packets of one train, one after the other, each of packet_size() bytes.
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

/// A node's addresses that others probe, at most four, so that the descriptors last.
inline constexpr std::size_t kMostListeners = 4;

/// Listens at a node's addresses: TCP connections are left in the queue, UDP packets that carry the token are answered
/// with their size. Nothing is kept of either. Threads: one, from construction to destruction.
class ProbeAnswers {
 public:
  /// @param wanted without ports; addresses that cannot be listened at are left out. Throws Error(system).
  explicit ProbeAnswers(const std::vector<ProbeListener>& wanted);
  ~ProbeAnswers();
  ProbeAnswers& operator=(ProbeAnswers&&) = delete;

  const std::vector<ProbeListener>& listeners() const;  ///< with ports
  const Bytes& token() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

struct ProbeTarget {
  int to_node = 0;
  ProbeListener listener;
  Bytes token;
};

/// Probes all targets at once. A target is done when it was reached, its largest packet answered, and a train of
/// packets (probe.hpp) was as fast as the interfaces allow, or several were not; @p deadline ends the others. @p
/// own the interfaces of this node, for MTU and speed of the one by which packets leave.
std::vector<ProbeResult> probe(const std::vector<ProbeTarget>& targets, const std::vector<InterfaceFacts>& own,
                               Deadline deadline);

/// Which nodes a node probes: all others up to 17 nodes, else those at distances of powers of two, so that each is
/// probed by several.
std::vector<int> probed_nodes(int node, int num_nodes);

}  // namespace ddp::tools::doctor
