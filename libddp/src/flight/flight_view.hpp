// What the memory of a process's flight recorder says to those outside.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "flight/flight_memory.hpp"

namespace ddp::flight {

struct FlightView {
  struct Group {
    std::string name;
    std::string backend{};
    int rank = -1;  ///< own, in the group
    int size = 0;
    std::vector<int> members{};     ///< ranks in the world; empty: unknown, or too many groups have too many
    std::uint64_t last_queued = 0;  ///< sequence of the last collective that was called
  };
  struct Call {
    std::string group;
    std::string operation;  ///< "all_reduce"
    std::uint64_t sequence = 0;
    std::uint64_t count = 0;
    bool transfer = false;
    int peer = -1;  ///< root, or the other end of a transfer: rank in the group
    FlightState state = FlightState::queued;
    double age_s = 0;  ///< since it was called
    double end_s = 0;  ///< since it ended, if it has
    std::string label{};
  };
  int pid = 0;  ///< as the process sees itself
  int rank = -1;
  int world_size = 0;
  FlightPhase phase = FlightPhase::none;
  double phase_s = 0;  ///< since it was entered
  /// FlightSums, in seconds.
  struct Sums {
    std::uint64_t operation_bytes = 0;
    std::uint64_t steps = 0;
    double step_s = 0;
    double communication_s = 0;
    double hidden_s = 0;
    double last_step_s = 0;
    double last_step_age_s = 0;
    int straggler_rank = -1;  ///< in the world; -1: nobody looked
    double straggler_delay_s = 0;
  };
  std::optional<Sums> sums{};  ///< nothing: of an older libddp
  std::uint64_t recorded = 0;
  std::uint64_t finished = 0;  ///< of those that are still in the ring
  std::vector<Group> groups;
  std::vector<Call> unfinished;  ///< in the order of calls; the first 4096
  std::optional<Call> last;      ///< that was called
};

/// @param memory aligned as a page; may change meanwhile. Nothing where it is no memory of a flight recorder of this
/// version. Text in it is made printable.
std::optional<FlightView> read_flight_memory(std::span<const std::byte> memory);

}  // namespace ddp::flight
