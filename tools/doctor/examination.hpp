// Gathers the facts of a job whose ranks are connected.
#pragma once

#include <optional>
#include <string>

#include <ddp/deadline.hpp>

#include "base/env_table.hpp"
#include "doctor/facts.hpp"
#include "world/job_connection.hpp"

namespace ddp::tools::doctor {

/// Collective. @return the job on rank 0, nothing elsewhere. Throws what the store throws, and on rank 0
/// Error(unavailable) where a rank could not be examined.
/// @param program that the ranks will run, as for surroundings_of_program()
std::optional<JobFacts> examine_job(const world::JobConnection& connection, const base::Environment& environment,
                                    Deadline deadline, const std::string& program = {});

}  // namespace ddp::tools::doctor
