// How the nodes of a generation differ from those before, and why it began: facts for the line about it, the event log
// and the report.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace ddp::launcher {

struct RosterChange {
  int before = 0;                     ///< nodes of the generation before; 0: there was none
  int survivors = 0;                  ///< how many of these go on
  std::vector<std::string> joined{};  ///< hosts of the others, by node rank
  std::vector<std::string> left{};    ///< hosts of those that wanted to leave
  std::vector<std::string> parked{};  ///< hosts of those that now wait as spares
  std::string asked_by{};             ///< who wanted another number of nodes; empty: nobody has
  bool spends_restart = false;
};

/// Why a generation began.
enum class GenerationReason {
  start,
  restart,
  node_lost,
  node_left,
  node_joined,
  requested,  ///< by ranks
  resized,    ///< by RosterChange::asked_by
};

/// A generation of the job, in the order of their numbers from 0.
struct GenerationFacts {
  GenerationReason reason = GenerationReason::start;
  RosterChange change{};
  std::vector<std::string> lost{};  ///< hosts
  std::chrono::system_clock::time_point time{};
};

}  // namespace ddp::launcher
