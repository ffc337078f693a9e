#include "base/torchrun_environment.hpp"

#include <algorithm>

#include <fmt/format.h>

#include <ddp/error.hpp>

namespace ddp::base {
namespace {

[[noreturn]] void fail(std::string cause, std::string hint) {
  throw Error{{.code = ErrorCode::invalid_argument,
               .attempted = "reading torchrun's environment",
               .cause = std::move(cause),
               .hint = std::move(hint)}};
}

std::string text(int value) { return std::to_string(value); }

}  // namespace

std::vector<TorchrunVariable> TorchrunEnvironment::variables() const {
  std::vector<TorchrunVariable> all{
      {.name = "RANK", .value = text(rank)},
      {.name = "LOCAL_RANK", .value = text(local_rank)},
      {.name = "WORLD_SIZE", .value = text(world_size)},
      {.name = "LOCAL_WORLD_SIZE", .value = text(local_world_size)},
      {.name = "GROUP_RANK", .value = text(node_rank.value_or(0))},
      {.name = "GROUP_WORLD_SIZE", .value = text(num_nodes.value_or(1))},
      {.name = "ROLE_NAME", .value = role},
      {.name = "ROLE_RANK", .value = text(role_rank)},
      {.name = "ROLE_WORLD_SIZE", .value = text(role_world_size)},
      {.name = "TORCHELASTIC_RESTART_COUNT", .value = text(restart_count)},
      {.name = "TORCHELASTIC_MAX_RESTARTS", .value = text(max_restarts)},
      {.name = "TORCHELASTIC_RUN_ID", .value = run_id},
      {.name = "TORCHELASTIC_USE_AGENT_STORE", .value = agent_serves_store ? "True" : "False"},
      {.name = "TORCHELASTIC_ERROR_FILE", .value = error_file, .default_only = true},
      {.name = "TORCHELASTIC_SIGNALS_TO_HANDLE", .value = ending_signals, .default_only = true},
      {.name = "TORCH_NCCL_ASYNC_ERROR_HANDLING", .value = "1", .default_only = true},
  };
  if (slurm_job) all.push_back({.name = kWorkerJobVariable, .value = *slurm_job});
  if (!master_address.empty()) {
    all.push_back({.name = "MASTER_ADDR", .value = master_address});
    all.push_back({.name = "MASTER_PORT", .value = text(master_port)});
  }
  return all;
}

TorchrunEnvironment TorchrunEnvironment::read(const Environment& environment) {
  for (const char* const name : kTorchrunRequired) {
    if (environment.has(name)) continue;
    fail(fmt::format("{} is not set, so the torchrun environment is incomplete", name),
         "start with torchrun, srun --mpi=pmix or ddprun, or set DDP_LAUNCH=single to run this process alone");
  }
  const int port = environment.number("MASTER_PORT").value();
  if (port < 1 || port > 65535) fail(fmt::format("MASTER_PORT={} is not a port number", port), "ports are 1 to 65535");
  TorchrunEnvironment worker;
  worker.rank = environment.number("RANK").value();
  worker.world_size = environment.number("WORLD_SIZE").value();
  worker.local_rank = environment.number("LOCAL_RANK").value();
  worker.node_rank = environment.number("GROUP_RANK");
  worker.num_nodes = environment.number("GROUP_WORLD_SIZE");
  worker.master_address = environment.raw("MASTER_ADDR").value();
  worker.master_port = static_cast<std::uint16_t>(port);
  worker.agent_serves_store = environment.raw("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True";
  worker.restart_count = environment.number("TORCHELASTIC_RESTART_COUNT").value_or(0);
  if (worker.master_address.empty()) fail("MASTER_ADDR is empty", "set it to the host of rank 0");
  return worker;
}

bool has_torchrun_environment(const Environment& environment) {
  return std::all_of(kTorchrunRequired.begin(), kTorchrunRequired.end(),
                     [&](const char* name) { return environment.has(name); });
}

bool is_torchrun_worker(const Environment& environment) {
  if (!environment.has("TORCHELASTIC_RUN_ID")) return false;
  const auto job = environment.raw(kWorkerJobVariable);
  return !job || *job == environment.raw("SLURM_JOB_ID").value_or("");
}

bool is_torchrun_identity(std::string_view name) {
  static const auto kAll = TorchrunEnvironment{.master_address = "any", .slurm_job = "any"}.variables();
  return name != "TORCH_NCCL_ASYNC_ERROR_HANDLING" &&
         std::any_of(kAll.begin(), kAll.end(), [&](const TorchrunVariable& each) { return each.name == name; });
}

}  // namespace ddp::base
