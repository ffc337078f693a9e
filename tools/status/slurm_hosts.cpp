#include "status/slurm_hosts.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "command/job_nodes.hpp"

namespace ddp::tools::status {
namespace {

// For squeue, for a node to answer that srun has reached, and for srun to end.
constexpr std::chrono::seconds kReserve{3};

}  // namespace

SlurmHosts ask_slurm_hosts(const std::string& job, bool stacks, Deadline deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::seconds>(deadline.remaining());
  const auto helper_limit = std::max(left - kReserve, std::chrono::seconds{1});
  std::vector<std::string> helper{"status", "--facts", "--job=" + job,
                                  fmt::format("--timeout={}", helper_limit.count())};
  if (stacks) helper.emplace_back("--stacks");
  NodeAnswers answers = ask_nodes_of_job(job, std::move(helper), deadline);
  SlurmHosts found{.notes = std::move(answers.notes), .nodes = answers.nodes};
  for (const Bytes& message : answers.messages) {
    try {
      found.hosts.push_back(diagnostics::decode_host_facts(message));
    } catch (const Error& error) {
      found.notes.emplace_back(error.what());
    }
  }
  return found;
}

}  // namespace ddp::tools::status
