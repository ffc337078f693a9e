// The connections that have not validated themselves: how long they may take, and who has to make room for others.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include <ddp/deadline.hpp>

namespace ddp::store_server {

/// Connections are named by serial, which ascends as they arrive, and are found by descriptor. All get the same time,
/// so that the oldest is the first whose time is over. Strangers are those whose address is not admitted; they go
/// first.
class PendingConnections {
 public:
  void add(std::uint64_t serial, int fd, Deadline deadline, bool stranger);
  /// Does nothing for one that is not there.
  void remove(std::uint64_t serial);
  /// The address of this stranger has been admitted; it keeps its deadline.
  void admit(std::uint64_t serial) { members_.insert(strangers_.extract(serial)); }

  /// When the first one's time is over.
  std::optional<Deadline> next_deadline() const;
  /// The descriptor of one whose time is over.
  std::optional<int> late() const;
  /// The descriptor of the oldest stranger, or of the oldest one where there are no strangers.
  std::optional<int> first_to_go() const;
  /// Descriptors of the strangers, oldest first.
  std::vector<int> strangers() const;
  std::size_t num_strangers() const { return strangers_.size(); }

 private:
  struct Pending {
    int fd;
    Deadline deadline;
  };

  using BySerial = std::map<std::uint64_t, Pending>;

  BySerial members_;
  BySerial strangers_;
};

}  // namespace ddp::store_server
