// What nodes leave for each other in the step's store to agree on a network: what each has, and what was decided.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ddp/bytes.hpp>

#include "topology/network/interface_agreement.hpp"

namespace ddp::srun_plugin {

/// The candidates of one node; empty where it has none.
using NodeNote = std::vector<topology::CandidateAddress>;

/// The same for all nodes of the step.
struct NetworkDecision {
  std::optional<topology::Subnet> subnet{};  ///< nothing: each node uses what routes to the others
  std::string reason{};                      ///< one sentence
  std::string by{};                          ///< the node that decided; empty: none, because the step is being ended
  bool step_ends() const { return by.empty(); }
  friend bool operator==(const NetworkDecision&, const NetworkDecision&) = default;
};

/// Where they are in the store. Programs put their keys below a name of theirs, torch's below "/".
inline constexpr const char* kDecisionKey = "ddp-step/network/decision";
std::string note_key(const std::string& node);

Bytes encode(const NodeNote& note);
Bytes encode(const NetworkDecision& decision);
/// Throw Error(protocol).
NodeNote decode_note(std::span<const std::byte> bytes);
NetworkDecision decode_decision(std::span<const std::byte> bytes);

}  // namespace ddp::srun_plugin
