#include "placement/node_placement.hpp"

#include <algorithm>
#include <exception>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/stderr_line.hpp"
#include "outcome/exit_error.hpp"
#include "topology/inventory/network_facts.hpp"
#include "topology/network/user_interfaces.hpp"
#include "topology/placement/placement_summary.hpp"

namespace ddp::launcher {
namespace {

/// Throws ExitError(kExitUsage) where there is nothing to count.
int count_ranks(const RanksPerNode& wanted, const std::optional<Topology>& topology,
                const base::Environment& environment) {
  using Kind = RanksPerNode::Kind;
  if (wanted.kind == Kind::number) return wanted.number;
  int gpus = 0;
  if (topology) {
    const auto named = topology::gpus_named_by(*topology, environment);
    gpus = static_cast<int>(named ? named->size() : topology->gpus().size());
  }
  if (wanted.kind == Kind::gpus && gpus == 0) {
    throw ExitError{kExitUsage,
                    {.code = ErrorCode::invalid_argument,
                     .attempted = "counting the GPUs for --nproc-per-node=gpu",
                     .cause = "this host has no GPU that ddprun may use",
                     .native = {},
                     .ranks = {},
                     .hint = "give a number, or auto; 'ddp-info topo' shows the GPUs that there are"}};
  }
  const int cpus = static_cast<int>(Binding::current().cpus.count());
  return std::min(wanted.kind == Kind::cpus || gpus == 0 ? cpus : gpus, kMaxRanksPerNode);
}

}  // namespace

SocketInterface one_host_interface(const base::Environment& environment) {
  std::vector<NetworkInterface> interfaces;
  for (auto& fact : topology::read_usable_interfaces()) {
    interfaces.push_back(std::move(fact.interface));
  }
  if (auto named = topology::interfaces_named_by_user(environment, interfaces)) {
    return {.name = named->names.front(), .reason = named->reason};
  }
  for (const NetworkInterface& interface : interfaces) {
    if (interface.kind == InterfaceKind::loopback && !interface.addresses.empty()) {
      return {.name = interface.name, .reason = "all ranks are on this host"};
    }
  }
  return {};
}

NodePlacement::NodePlacement(const LaunchOptions& options, const base::Environment& environment)
    : environment_(environment),
      gpus_(options.virtual_local_rank ? topology::GpuVisibility::one : options.gpus),
      bound_(options.bind != BindPolicy::none) {
  const auto warn = [](const std::exception& error) {
    base::write_stderr_line(
        fmt::format("ddprun: warning: ranks are neither bound to cores nor given GPUs: {}", error.what()));
  };
  try {
    topology_ = Topology::live();
    if (topology_->source() == "this machine") topology_xml_ = topology_->to_xml();
  } catch (const std::exception& error) {
    warn(error);
  }
  nproc_ = count_ranks(options.nproc, topology_, environment);
  bindings_.resize(static_cast<std::size_t>(nproc_));
  if (!topology_) return;
  try {
    place_ranks(options);
  } catch (const std::exception& error) {
    placements_.clear();
    warn(error);
  }
}

void NodePlacement::place_ranks(const LaunchOptions& options) {
  placements_ = place(*topology_, {.num_ranks = nproc_,
                                   .policy = options.bind,
                                   .allowed = {Binding::current().cpus},
                                   .gpus = topology::gpus_named_by(*topology_, environment_)});
  std::sort(placements_.begin(), placements_.end(),
            [](const Placement& a, const Placement& b) { return a.local_rank < b.local_rank; });
  for (const Placement& placement : placements_) {
    if (bound_) bindings_.at(static_cast<std::size_t>(placement.local_rank)) = Binding::from(*topology_, placement);
  }
}

const std::optional<Binding>& NodePlacement::binding(int local_rank) const {
  return bindings_.at(static_cast<std::size_t>(local_rank));
}

std::string NodePlacement::summary(int local_rank) const {
  if (placements_.empty()) return "not placed";
  return topology::summarize(*topology_, placements_.at(static_cast<std::size_t>(local_rank)));
}

std::vector<topology::Setting> NodePlacement::settings(int local_rank, const SocketInterface& interface) const {
  if (placements_.empty()) return {};
  return topology::derive_settings(
      *topology_, placements_, local_rank,
      {.gpus = gpus_, .bound = bound_, .socket_interface = interface.name, .socket_interface_reason = interface.reason},
      environment_);
}

}  // namespace ddp::launcher
