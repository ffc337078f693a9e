// The connections of a listener that have not authenticated yet. Their number is bounded, and the source of the most
// crowds out only itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <string>

#include <ddp/bytes.hpp>
#include <ddp/deadline.hpp>

#include "base/connection_source.hpp"
#include "base/unique_fd.hpp"
#include "control/greeting.hpp"
#include "control/session_cipher.hpp"

namespace ddp::launcher::control {

inline constexpr std::size_t kMaxPending = 512;

struct PendingConnection {
  base::UniqueFd socket{};
  std::string peer{};  ///< "10.1.2.3:40122"
  base::ConnectionSource source;
  Deadline::Clock::time_point since{};
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
  /// The oldest of those that have said nothing yet.
  std::optional<Place> oldest_silent();
  /// The oldest of the source that has the most; the place to take when there are too many. There must be one.
  Place most_crowding();
  /// How many the source of @p place has.
  std::size_t share_of(Place place) const { return shares_.of(place->source); }

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
  base::SourceShares shares_;
};

}  // namespace ddp::launcher::control
