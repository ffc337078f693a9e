#include "placement/node_placement.hpp"

#include <algorithm>
#include <exception>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/log.hpp"
#include "outcome/exit_error.hpp"
#include "topology/placement/gpu_assignment.hpp"
#include "topology/placement/visible_devices.hpp"

namespace ddp::launcher {
namespace {

void warn(const std::exception& error) {
  base::write_stderr_line(
      fmt::format("ddprun: warning: ranks are neither bound to cores nor given GPUs: {}", error.what()));
}

/// Throws ExitError(kExitUsage) where there is nothing to count.
int count_ranks(const RanksPerNode& wanted, const std::optional<Topology>& topology,
                const base::Environment& environment, const CpuSet& allowed, const base::CgroupLimits& limits) {
  using Kind = RanksPerNode::Kind;
  if (wanted.kind == Kind::number) return wanted.number;
  int gpus = 0;
  if (topology) {
    const auto named = topology::gpus_named_by(*topology, environment);
    gpus = static_cast<int>(named ? named->size() : topology::usable_gpus(*topology).size());
  }
  if (wanted.kind == Kind::gpus && gpus == 0) {
    throw ExitError{kExitUsage,
                    {.code = ErrorCode::invalid_argument,
                     .attempted = "counting the GPUs for --nproc-per-node=gpu",
                     .cause = "this host has no GPU that ddprun may use",
                     .hint = "give a number, or auto; 'ddp-info topo' shows the GPUs of this host"}};
  }
  const int whole = limits.whole_processors();
  const int processors = whole > 0 ? std::min(whole, allowed.count()) : allowed.count();
  return std::min(wanted.kind == Kind::cpus || gpus == 0 ? processors : gpus, kMaxRanksPerNode);
}

}  // namespace

NodePlacement NodePlacement::of_this_host(const LaunchOptions& options, const base::Environment& environment) {
  std::optional<Topology> topology;
  try {
    topology = Topology::live();
  } catch (const std::exception& error) {
    warn(error);
  }
  return NodePlacement(options, environment, std::move(topology), Binding::current().cpus, base::CgroupLimits::read(),
                       base::read_nccl_conf(environment, base::home_folder(environment)));
}

NodePlacement::NodePlacement(const LaunchOptions& options, base::Environment environment,
                             std::optional<Topology> topology, const CpuSet& allowed, const base::CgroupLimits& limits,
                             std::vector<base::NcclConf> nccl_conf)
    : request_{.bind = options.bind,
               .gpus = options.gpus,
               .environment = environment,
               .nccl_conf = std::move(nccl_conf)},
      topology_(std::move(topology)) {
  const int nproc = count_ranks(options.nproc, topology_, environment, allowed, limits);
  topology::RankResources each{.cpus = allowed, .devices = topology::device_variables(environment)};
  take_limits(each, limits);
  request_.ranks.assign(static_cast<std::size_t>(nproc), each);
  if (!topology_) return;
  try {
    topology::plan_node(*topology_, request_);
    placed_ = true;
  } catch (const std::exception& error) {
    warn(error);
  }
}

std::string NodePlacement::topology_xml() const {
  return topology_ && topology_->source() == "this machine" ? topology_->to_xml() : std::string();
}

std::vector<topology::RankPlan> NodePlacement::plan(const topology::SocketInterface& interface) const {
  if (!placed_) {
    return std::vector<topology::RankPlan>(request_.ranks.size(), {.summary = "not placed"});
  }
  topology::NodeRequest request = request_;
  request.interface = interface;
  return topology::plan_node(*topology_, request);
}

}  // namespace ddp::launcher
