// The connections of a listener that have not authenticated yet. Their number is bounded, and whoever opens the most of
// them crowds out only itself.
#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <string>

#include <ddp/bytes.hpp>
#include <ddp/deadline.hpp>

#include "base/unique_fd.hpp"
#include "control/greeting.hpp"
#include "control/session_cipher.hpp"

namespace ddp::launcher::control {

inline constexpr std::size_t kMaxPending = 512;

/// Who could have many addresses is one source: an IPv4 address, an IPv6 network of 64 bits, or this host's loopback
/// addresses.
std::string source_of(const sockaddr_storage& address);

struct PendingConnection {
  base::UniqueFd socket;
  std::string peer;    ///< "10.1.2.3:40122"
  std::string source;  ///< source_of()
  Deadline::Clock::time_point since;
  std::uint64_t number = 0;  ///< never used again
  Bytes received = {};       ///< of what is due: a greeting, then a proof with its length
  std::optional<Greeting> theirs = {};
  std::optional<EphemeralKey> key = {};  ///< once there is a greeting: it takes a while to make
  Greeting ours = {};
  bool being_checked = false;  ///< its proof, by a ProofThread
};

class PendingConnections {
 public:
  using Place = std::list<PendingConnection>::iterator;

  bool empty() const { return list_.empty(); }
  std::size_t size() const { return list_.size(); }
  /// There must be one.
  Place oldest() { return list_.begin(); }
  /// The oldest of the source that has the most; the place to take when there are too many. There must be one.
  Place most_crowding();
  /// How many the source of @p place has.
  std::size_t share_of(Place place) const { return shares_.at(place->source); }

  Place add(PendingConnection connection);
  void erase(Place place);
  std::optional<Place> find(std::uint64_t number);
  /// Calls @p each with all of them, and forgets them.
  template <class Function>
  void clear(const Function& each) {
    for (const PendingConnection& connection : list_) each(connection);
    list_.clear();
    shares_.clear();
  }

 private:
  std::list<PendingConnection> list_;  // the oldest first
  std::map<std::string, std::size_t> shares_;
};

}  // namespace ddp::launcher::control
