#include "world/launch_environment.hpp"

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/launch_engine.hpp"
#include "base/slurm_step.hpp"
#include "kvs/pmi_store.hpp"
#include "topology/network/hostlist.hpp"

namespace ddp {

std::string_view to_string(LaunchSource source) noexcept {
  switch (source) {
    case LaunchSource::pmix: return "pmix";
    case LaunchSource::pmi2: return "pmi2";
    case LaunchSource::pmi1: return "pmi1";
    case LaunchSource::torchrun: return "torchrun";
    case LaunchSource::openmpi: return "openmpi";
    case LaunchSource::slurm: return "slurm";
    case LaunchSource::single: return "single";
  }
  return "unknown";
}

}  // namespace ddp

namespace ddp::world {
namespace {

using base::Environment;
using base::SlurmStep;

constexpr auto kAttempted = "finding out how this process was launched";

[[noreturn]] void fail(ErrorCode code, std::string cause, std::string hint) {
  throw Error{{.code = code, .attempted = kAttempted, .cause = std::move(cause), .hint = std::move(hint)}};
}

void check_rank_in_world(std::string_view rank_name, int rank, std::string_view size_name, int world_size) {
  if (world_size >= 1 && rank < world_size) return;
  fail(ErrorCode::invalid_argument, fmt::format("{}={} does not fit {}={}", rank_name, rank, size_name, world_size),
       fmt::format("{} must be at least 0 and below {}", rank_name, size_name));
}

base::TorchrunEnvironment read_torchrun(const Environment& env) {
  auto facts = base::TorchrunEnvironment::read(env);
  check_rank_in_world("RANK", facts.rank, "WORLD_SIZE", facts.world_size);
  check_rank_in_world("LOCAL_RANK", facts.local_rank, "WORLD_SIZE", facts.world_size);
  return facts;
}

/// Whether Slurm itself is the launcher. Behind mpirun or ddprun, SLURM_PROCID is a parent's.
bool slurm_is_launcher(const Environment& env, const SlurmStep& step, LaunchSource source) {
  if (step.kind != SlurmStep::Kind::user) return false;
  switch (source) {
    case LaunchSource::pmix: return env.raw("PMIX_NAMESPACE").value_or("") == "slurm.pmix." + step.name;
    case LaunchSource::pmi2: return env.raw("PMI_JOBID").value_or("") == step.name;
    // under torchrun the Slurm task is the agent; without it, the user exported the variables in the task itself
    case LaunchSource::torchrun: return !base::is_torchrun_worker(env);
    case LaunchSource::pmi1:
    case LaunchSource::openmpi: return false;
    case LaunchSource::slurm:
    case LaunchSource::single: return true;
  }
  return false;
}

void add_claim(const Environment& env, std::string_view variable, std::vector<Claim>& claims) {
  if (const auto value = env.number(variable)) claims.push_back({std::string(variable), *value});
}

void collect_claims(const Environment& env, const SlurmStep& step, LaunchEnvironment& launch) {
  if (env.has("PMIX_NAMESPACE")) add_claim(env, "PMIX_RANK", launch.rank_claims);
  if (env.has("PMI_FD")) {
    add_claim(env, "PMI_RANK", launch.rank_claims);
    add_claim(env, "PMI_SIZE", launch.size_claims);
  }
  if (env.has("RANK") && env.has("WORLD_SIZE")) {
    add_claim(env, "RANK", launch.rank_claims);
    add_claim(env, "WORLD_SIZE", launch.size_claims);
  }
  add_claim(env, "OMPI_COMM_WORLD_RANK", launch.rank_claims);
  add_claim(env, "OMPI_COMM_WORLD_SIZE", launch.size_claims);
  if (step.is_task() && slurm_is_launcher(env, step, launch.source)) {
    add_claim(env, "SLURM_PROCID", launch.rank_claims);
    add_claim(env, "SLURM_STEP_NUM_TASKS", launch.size_claims);
  }
}

void require(const Environment& env, std::string_view variable, LaunchSource source) {
  if (env.has(variable)) return;
  fail(ErrorCode::unavailable, fmt::format("DDP_LAUNCH asks for {}, but {} is not set", to_string(source), variable),
       "unset DDP_LAUNCH, or start the program with that launcher");
}

LaunchSource first_source(const Environment& env, const SlurmStep& step) {
  if (env.has("PMIX_NAMESPACE")) return LaunchSource::pmix;
  if (const int version = kvs::pmi_version(env); version != 0)
    return version == 2 ? LaunchSource::pmi2 : LaunchSource::pmi1;
  if (base::has_torchrun_environment(env)) return LaunchSource::torchrun;
  if (env.has("OMPI_COMM_WORLD_RANK")) return LaunchSource::openmpi;
  if (step.is_task() && step.num_tasks) return LaunchSource::slurm;
  if (env.has("RANK") && env.number("WORLD_SIZE").value_or(1) > 1)
    return LaunchSource::torchrun;  // says what is missing
  return LaunchSource::single;
}

void check_open_mpi(const Environment& env) {
  const int rank = env.number("OMPI_COMM_WORLD_RANK").value_or(0);
  const int world_size = env.number("OMPI_COMM_WORLD_SIZE").value_or(1);
  check_rank_in_world("OMPI_COMM_WORLD_RANK", rank, "OMPI_COMM_WORLD_SIZE", world_size);
  if (world_size > 1) {
    fail(ErrorCode::unavailable,
         fmt::format("Open MPI's variables describe {} ranks, but PMIX_NAMESPACE is not set, so they cannot find each "
                     "other",
                     world_size),
         "keep the PMIX_* variables that mpirun sets, or start with srun --mpi=pmix or ddprun");
  }
}

void check_slurm(const SlurmStep& step) {
  const int tasks = step.is_task() ? step.num_tasks.value_or(1) : 1;
  if (tasks > 1) {
    fail(ErrorCode::unavailable,
         fmt::format("this Slurm step has {} tasks but no PMI, so they cannot find each other", tasks),
         "start the step with srun --mpi=pmix (or --mpi=pmi2)");
  }
}

/// Tasks of an engine that gave them no PMI.
void check_engine(const std::optional<base::EngineTask>& task) {
  if (!task || task->tasks.value_or(1) <= 1) return;
  fail(ErrorCode::unavailable,
       fmt::format("{} has started {} tasks but no PMI, so they cannot find each other", task->engine, *task->tasks),
       fmt::format("start them with {}, or with ddprun; DDP_LAUNCH=single runs each alone", task->pmi_command));
}

std::vector<std::string> peer_hosts(const Environment& env, const SlurmStep& step, const LaunchEnvironment& launch) {
  std::vector<std::string> hosts;
  if (launch.torchrun) hosts.push_back(launch.torchrun->master_address);
  if (!step.node_list.empty() && slurm_is_launcher(env, step, launch.source)) {
    try {
      for (std::string& name : topology::expand_hostlist(step.node_list)) {
        if (name != step.node_name) hosts.push_back(std::move(name));
      }
    } catch (const Error&) {
      // only a hint for choosing the interface
    }
  }
  return hosts;
}

}  // namespace

LaunchEnvironment detect_launch(const Environment& env, std::optional<LaunchSource> forced) {
  const SlurmStep step = SlurmStep::read(env);
  std::optional<base::EngineTask> engine;
  if (!forced) engine = base::EngineTask::read(env);
  LaunchEnvironment launch;
  launch.source = forced.value_or(first_source(env, step));
  switch (launch.source) {
    case LaunchSource::pmix:
      require(env, "PMIX_NAMESPACE", launch.source);
      launch.reason = fmt::format("PMIX_NAMESPACE is {}", env.raw("PMIX_NAMESPACE").value_or(""));
      break;
    case LaunchSource::pmi2:
      require(env, "PMI_FD", launch.source);
      launch.reason = fmt::format("PMI_FD is {} and PMIX_NAMESPACE is not set", env.raw("PMI_FD").value_or(""));
      break;
    case LaunchSource::pmi1:
      if (!env.has("PMI_PORT")) require(env, "PMI_FD", launch.source);
      launch.reason =
          fmt::format("{} is {}, PMIX_NAMESPACE and PMI_JOBID are not set", env.has("PMI_FD") ? "PMI_FD" : "PMI_PORT",
                      env.raw("PMI_FD").value_or(env.raw("PMI_PORT").value_or("")));
      break;
    case LaunchSource::torchrun:
      launch.torchrun = read_torchrun(env);
      launch.reason = "RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT are set and no PMI is";
      break;
    case LaunchSource::openmpi:
      require(env, "OMPI_COMM_WORLD_RANK", launch.source);
      check_open_mpi(env);
      launch.reason = "Open MPI's variables describe a single rank";
      break;
    case LaunchSource::slurm:
      require(env, "SLURM_PROCID", launch.source);
      check_slurm(step);
      launch.reason = "this is the only task of its Slurm step";
      break;
    case LaunchSource::single:
      check_engine(engine);
      launch.reason = "no launcher's variables are set, so this process is alone";
      break;
  }
  if (forced) {
    launch.reason = fmt::format("DDP_LAUNCH or InitOptions ask for {}", to_string(*forced));
  } else {
    collect_claims(env, step, launch);
  }
  const bool by_engine = launch.source == LaunchSource::pmix || launch.source == LaunchSource::pmi1;
  if (engine && by_engine && !slurm_is_launcher(env, step, launch.source))
    launch.reason += fmt::format(", by {}", engine->engine);
  launch.peer_hosts = peer_hosts(env, step, launch);
  return launch;
}

void check_agreement(const LaunchEnvironment& launch, std::string_view chosen, int rank, int world_size) {
  const auto compare = [&](const std::vector<Claim>& claims, std::string_view what, int value) {
    for (const Claim& claim : claims) {
      if (claim.value == value) continue;
      fail(ErrorCode::conflict,
           fmt::format("the sources disagree about the {}: {} says {}, {} says {}", what, chosen, value, claim.variable,
                       claim.value),
           fmt::format("unset the variable if another launcher left it, or set DDP_LAUNCH={} to use that source "
                       "alone",
                       to_string(launch.source)));
    }
  };
  compare(launch.rank_claims, "rank", rank);
  compare(launch.size_claims, "number of ranks", world_size);
}

}  // namespace ddp::world
