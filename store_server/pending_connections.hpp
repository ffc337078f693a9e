// Connections that have not sent VALIDATE: their deadlines, and which one is closed to make room.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include <ddp/deadline.hpp>

namespace ddp::store_server {

/// Keyed by serial, which ascends with arrival, and returned by descriptor. All have the same time limit, so the oldest
/// expires first. Connections that are not admitted yet are
/// evicted first.
class PendingConnections {
 public:
  void add(std::uint64_t serial, int fd, Deadline deadline, bool admitted);
  /// Does nothing for an unknown serial.
  void remove(std::uint64_t serial);
  /// It is known to be of the job; it keeps its deadline. Does nothing for an unknown serial.
  void admit(std::uint64_t serial) {
    if (auto found = unadmitted_.extract(serial)) admitted_.insert(std::move(found));
  }

  /// The earliest deadline.
  std::optional<Deadline> next_deadline() const;
  /// The descriptor of a connection past its deadline.
  std::optional<int> expired() const;
  /// The descriptor of the connection to evict: the oldest unadmitted, else the oldest.
  std::optional<int> eviction_candidate() const;
  std::size_t num_unadmitted() const { return unadmitted_.size(); }

 private:
  struct Pending {
    int fd;
    Deadline deadline;
  };

  using BySerial = std::map<std::uint64_t, Pending>;

  BySerial admitted_;
  BySerial unadmitted_;
};

}  // namespace ddp::store_server
