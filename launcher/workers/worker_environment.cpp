#include "workers/worker_environment.hpp"

#include <algorithm>
#include <array>
#include <optional>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/launch_engine.hpp"
#include "base/slurm_step.hpp"
#include "topology/network/user_interfaces.hpp"

namespace ddp::launcher {
namespace {

constexpr std::array<std::string_view, 9> kIdentityPrefixes{
    "PMIX_",             // PMIx: namespace, rank and server address
    "PMI_",              // PMI-1 and PMI-2: rank, size and connection
    "OMPI_COMM_WORLD_",  // Open MPI: rank and sizes
    "OMPI_MCA_orte_",    // Open MPI 4: address and identity of its daemon
    "OMPI_MCA_ess",      // Open MPI 4: how a process finds its identity
    "PRTE_MCA_ess",      // PRRTE: the same
    "PRTE_MCA_prte_",    // PRRTE: address of its daemon
    "MPI_LOCAL",         // Hydra: MPI_LOCALRANKID, MPI_LOCALNRANKS
    "MV2_COMM_WORLD_",   // MVAPICH: rank and sizes
};

constexpr std::array<std::string_view, 11> kIdentityNames{
    "SLURM_PROCID",        "SLURM_LOCALID", "SLURM_GTIDS", "SLURM_TASK_PID",
    "DDP_CHANGE_DIR",       // of the ddprun that started it
    "DDP_NODE_CACHE",       // likewise
    "DDP_RDZV_SECRET",      // for agents only
    "DDP_METRICS_ADDRESS",  // for agents only: a ddprun in a rank has its own job
    "DDP_METRICS_PORT",
    "DDPRUN_AGENT",       // ddprun: how the agent that it starts finds it
    "DDPRUN_AGENT_HOST",  // the same over ssh: which host it is
};

/// torchrun's --virtual-local-rank: the k-th of the devices that ddprun was given, or number k where none are named.
std::string virtual_device(const std::optional<std::string>& given, int local_rank) {
  if (!given) return std::to_string(local_rank);
  std::string_view rest = *given;
  for (int k = 0; k < local_rank && !rest.empty(); ++k) {
    const auto comma = rest.find(',');
    rest = comma == std::string_view::npos ? std::string_view{} : rest.substr(comma + 1);
  }
  if (rest.empty()) {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = fmt::format("choosing the device of local rank {} (--virtual-local-rank)", local_rank),
                 .cause = fmt::format("CUDA_VISIBLE_DEVICES={} names too few", *given),
                 .hint = "name one for each rank, or start fewer ranks"}};
  }
  return std::string(rest.substr(0, rest.find(',')));
}

}  // namespace

bool is_task_identity(std::string_view name) {
  if (name.starts_with("PMIX_MCA_")) return false;
  return base::is_torchrun_identity(name) || base::is_engine_identity(name) ||
         std::find(kIdentityNames.begin(), kIdentityNames.end(), name) != kIdentityNames.end() ||
         std::any_of(kIdentityPrefixes.begin(), kIdentityPrefixes.end(),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

EnvironmentMap without_task_identity(const EnvironmentMap& inherited) {
  EnvironmentMap kept;
  for (const auto& [name, value] : inherited) {
    if (!is_task_identity(name)) kept.emplace(name, value);
  }
  return kept;
}

EnvironmentMap worker_environment(EnvironmentMap inheritable, const base::TorchrunEnvironment& worker,
                                  const std::vector<topology::Setting>& settings, bool virtual_local_rank) {
  const auto devices = inheritable.find("CUDA_VISIBLE_DEVICES");
  const std::optional<std::string> given_devices =
      devices != inheritable.end() ? std::optional{devices->second} : std::nullopt;
  for (base::TorchrunVariable& variable : worker.variables()) {
    if (variable.default_only)
      inheritable.try_emplace(variable.name, std::move(variable.value));
    else
      inheritable[variable.name] = std::move(variable.value);
  }
  base::StepSettings placed;
  for (const topology::Setting& setting : settings) {
    if (setting.by_user) continue;
    inheritable[setting.name] = setting.value;
    placed.variables.push_back({.name = setting.name, .digest = base::value_digest(setting.value)});
    if (setting.name == "GLOO_SOCKET_IFNAME") inheritable[topology::kInterfaceReasonVariable] = setting.reason;
  }
  inheritable.erase(base::kPlacedSettingsVariable);
  if (!placed.variables.empty()) inheritable[base::kPlacedSettingsVariable] = encode(placed);
  if (virtual_local_rank) {
    inheritable["LOCAL_RANK"] = "0";
    inheritable["CUDA_VISIBLE_DEVICES"] = virtual_device(given_devices, worker.local_rank);
  }
  inheritable["DDP_BIND"] = "none";
  return inheritable;
}

std::vector<std::string> environment_lines(const EnvironmentMap& environment) {
  std::vector<std::string> lines;
  lines.reserve(environment.size());
  for (const auto& [name, value] : environment) lines.push_back(name + "=" + value);
  return lines;
}

}  // namespace ddp::launcher
