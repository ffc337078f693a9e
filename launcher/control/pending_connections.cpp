#include "control/pending_connections.hpp"

#include <algorithm>
#include <utility>

namespace ddp::launcher::control {

PendingConnections::Place PendingConnections::most_crowding() {
  return std::find_if(list_.begin(), list_.end(), [source = shares_.largest()](const PendingConnection& connection) {
    return connection.source == source;
  });
}

std::optional<PendingConnections::Place> PendingConnections::oldest_silent() {
  const auto found = std::find_if(list_.begin(), list_.end(), [](const PendingConnection& connection) {
    return connection.received.empty() && !connection.theirs;
  });
  return found == list_.end() ? std::nullopt : std::optional{found};
}

PendingConnections::Place PendingConnections::add(PendingConnection connection) {
  shares_.add(connection.source);
  list_.push_back(std::move(connection));
  return std::prev(list_.end());
}

void PendingConnections::erase(Place place) {
  shares_.remove(place->source);
  list_.erase(place);
}

std::optional<PendingConnections::Place> PendingConnections::find(std::uint64_t number) {
  const auto found = std::find_if(list_.begin(), list_.end(),
                                  [&](const PendingConnection& connection) { return connection.number == number; });
  return found == list_.end() ? std::nullopt : std::optional{found};
}

}  // namespace ddp::launcher::control
