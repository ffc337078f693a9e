#include "task_facts.hpp"

#include <fmt/format.h>

#include <ddp/error.hpp>

namespace ddp::srun_plugin {
namespace {

// SLURM_INTERACTIVE_STEP, SLURM_BATCH_SCRIPT, SLURM_EXTERN_CONT and SLURM_PENDING_STEP lie from here on (slurm.h).
constexpr std::uint32_t kFirstSpecialStep = 0xfffffffaU;

[[noreturn]] void missing(std::string_view name) {
  throw Error{{.code = ErrorCode::unavailable,
               .attempted = "finding out which task of the step this is",
               .cause = fmt::format("{} is not set", name),
               .native = {},
               .ranks = {},
               .hint = {}}};
}

int number(const base::Environment& environment, std::string_view name) {
  const auto value = environment.number(name);
  if (!value) missing(name);
  return *value;
}

}  // namespace

TaskFacts read_task_facts(const base::Environment& environment, std::uint32_t local_tasks) {
  TaskFacts facts;
  facts.rank = number(environment, "SLURM_PROCID");
  facts.world_size = number(environment, "SLURM_STEP_NUM_TASKS");
  facts.local_rank = number(environment, "SLURM_LOCALID");
  facts.local_world_size = static_cast<int>(local_tasks);
  facts.node_rank = number(environment, "SLURM_NODEID");
  facts.num_nodes = number(environment, "SLURM_STEP_NUM_NODES");
  facts.step = fmt::format("{}.{}", environment.raw("SLURM_JOB_ID").value_or("0"),
                           environment.raw("SLURM_STEP_ID").value_or("0"));
  facts.node_list = environment.raw("SLURM_STEP_NODELIST").value_or("");
  facts.node_name = environment.raw("SLURMD_NODENAME").value_or("");
  facts.srun_address = environment.raw("SLURM_LAUNCH_NODE_IPADDR").value_or("");
  if (facts.srun_address.empty()) facts.srun_address = environment.raw("SLURM_SRUN_COMM_HOST").value_or("");
  facts.has_pmi = environment.has("PMIX_NAMESPACE") || environment.has("PMI_FD");
  return facts;
}

bool is_user_step(std::uint32_t step_id) { return step_id < kFirstSpecialStep; }

}  // namespace ddp::srun_plugin
