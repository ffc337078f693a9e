// Gathers the facts of a job whose ranks are connected: brings every rank's to rank 0, and lets the nodes probe each
// other in between.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>
#include <ddp/key_value_store.hpp>

#include "base/env_table.hpp"
#include "diagnostics/environment/rank_environment.hpp"
#include "doctor/facts.hpp"
#include "doctor/probe.hpp"
#include "world/job_connection.hpp"

namespace ddp::tools::doctor {

using ProbeFunction = std::function<std::vector<ProbeResult>(const std::vector<ProbeTarget>&)>;

/// Collective: all ranks of the job call it. Two fences: for everyone's environment and facts, and for what the probes
/// of each node's first rank found.
/// @param nodes where ranks run, if the launcher tells; else by RankFacts::node, else by host name.
/// @return the job on rank 0, nothing elsewhere. Throws what the store throws, and Error(protocol).
std::optional<JobFacts> gather(KeyValueStore& store, const std::optional<world::NodeMap>& nodes, const RankFacts& own,
                               const diagnostics::RankEnvironment& environment, const ProbeFunction& probe,
                               Deadline deadline);

/// Collective. @return the job on rank 0, nothing elsewhere. Throws what the store throws, and on rank 0
/// Error(unavailable) where a rank could not be examined.
/// @param program that the ranks will run, as for surroundings_of_program()
std::optional<JobFacts> examine_job(const world::JobConnection& connection, const base::Environment& environment,
                                    Deadline deadline, const std::string& program = {});

}  // namespace ddp::tools::doctor
