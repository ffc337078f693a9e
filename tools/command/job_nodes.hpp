// Asks the nodes of a running Slurm job, by a helper on each that srun starts beside the ranks.
#pragma once

#include <string>
#include <vector>

#include <ddp/bytes.hpp>
#include <ddp/deadline.hpp>

namespace ddp::tools {

struct NodeAnswers {
  std::vector<Bytes> messages;     ///< of the nodes that have answered, by host
  std::vector<std::string> notes;  ///< what is wrong with the others
  int nodes = 0;                   ///< of the job
};

/// @param job "17" or "17.0". @param helper what ddp-info gets on each node; it prints helper_lines. Throws Error:
/// not_found, also where another user's job is hidden; unavailable without Slurm and for another user's job.
NodeAnswers ask_nodes_of_job(const std::string& job, std::vector<std::string> helper, Deadline deadline);

}  // namespace ddp::tools
