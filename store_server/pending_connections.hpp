// Connections that have not sent VALIDATE: their deadlines, and which one is closed to make room.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>

#include <ddp/deadline.hpp>

#include "base/connection_source.hpp"

namespace ddp::store_server {

struct PendingConnection {
  int fd;
  Deadline deadline;
  base::ConnectionSource source;
};

/// Keyed by serial, which ascends with arrival, and returned by descriptor. All have the same time limit, so the oldest
/// expires first.
class PendingConnections {
 public:
  void add(std::uint64_t serial, const PendingConnection& connection, bool admitted);
  /// Does nothing for an unknown serial.
  void remove(std::uint64_t serial);
  /// It is known to be of the job; it keeps its deadline. Does nothing for an unknown serial.
  void admit(std::uint64_t serial);

  /// The earliest deadline.
  std::optional<Deadline> next_deadline() const;
  /// The descriptor of a connection past its deadline.
  std::optional<int> expired() const;
  /// The descriptor of the connection to evict: the oldest unadmitted one of the source that has the most of them, else
  /// the oldest.
  std::optional<int> eviction_candidate() const;
  std::size_t num_unadmitted() const { return unadmitted_.size(); }

 private:
  using BySerial = std::map<std::uint64_t, PendingConnection>;

  BySerial::node_type take_unadmitted(std::uint64_t serial);

  BySerial admitted_;
  BySerial unadmitted_;
  base::SourceShares shares_;  ///< of the unadmitted
};

}  // namespace ddp::store_server
