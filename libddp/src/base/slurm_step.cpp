#include "base/slurm_step.hpp"

#include <charconv>

#include <fmt/format.h>

namespace ddp::base {
namespace {

constexpr std::uint32_t kMaxNormalStepId = 0xfffffff0;  // SLURM_MAX_NORMAL_STEP_ID

SlurmStep::Kind kind_of(const std::string& step_id) {
  std::uint32_t number = 0;
  const char* const last = step_id.data() + step_id.size();
  const auto [end, status] = std::from_chars(step_id.data(), last, number);
  if (step_id.empty() || status != std::errc{} || end != last) return SlurmStep::Kind::none;
  return is_user_step(number) ? SlurmStep::Kind::user : SlurmStep::Kind::special;
}

}  // namespace

bool is_user_step(std::uint32_t step_id) { return step_id < kMaxNormalStepId; }

SlurmStep SlurmStep::read(const Environment& environment) {
  const auto text = [&](const char* variable) { return environment.raw(variable).value_or(""); };
  const std::string step_id = text("SLURM_STEP_ID");
  return {.kind = kind_of(step_id),
          .name = fmt::format("{}.{}", environment.raw("SLURM_JOB_ID").value_or("0"), step_id.empty() ? "0" : step_id),
          .rank = environment.number("SLURM_PROCID"),
          .num_tasks = environment.number("SLURM_STEP_NUM_TASKS"),
          .local_rank = environment.number("SLURM_LOCALID"),
          .node_rank = environment.number("SLURM_NODEID"),
          .num_nodes = environment.number("SLURM_STEP_NUM_NODES"),
          .tasks_per_node = text("SLURM_STEP_TASKS_PER_NODE"),
          .node_list = text("SLURM_STEP_NODELIST"),
          .node_name = text("SLURMD_NODENAME")};
}

}  // namespace ddp::base
