// The first place in a group where it does not continue: its members called different things, or some wait for others.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "flight/analysis.hpp"

namespace ddp::tools::flight {

/// Ranks are those of the world, ascending.
struct Stall {
  std::string group;
  std::uint64_t sequence = 0;       ///< 0: a transfer
  std::optional<Finding> mismatch;  ///< they called different things; sure by itself
  std::string operation;            ///< else what the callers called
  std::int64_t since_ns = 0;        ///< when the first of them did, by its clock
  std::vector<int> callers;
  std::vector<int> waiting;  ///< callers that have not finished it
  std::vector<int> absent;   ///< their dumps show that they have not called it
  std::vector<int> unknown;  ///< they have no dump
};

/// At most one of the collectives, and one of each kind of unfinished transfer between two ranks.
std::vector<Stall> find_stalls(const GroupCalls& group);

}  // namespace ddp::tools::flight
