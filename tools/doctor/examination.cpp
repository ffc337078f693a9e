#include "doctor/examination.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/host_name.hpp"
#include "command/judged_program.hpp"
#include "diagnostics/environment/rank_environment.hpp"
#include "doctor/collect.hpp"
#include "doctor/gather.hpp"
#include "doctor/nccl_interfaces.hpp"

namespace ddp::tools::doctor {
namespace {

// With both the whole stays below three seconds, whatever does not answer.
constexpr auto kResolveTime = std::chrono::milliseconds(700);
constexpr auto kProbeTime = std::chrono::milliseconds(1000);

/// Where others shall probe this node: what NCCL and libddp would use.
std::vector<ProbeListener> probed_addresses(const RankFacts& own, const NodeFacts& node) {
  std::vector<ProbeListener> listeners;
  const auto add = [&](const std::string& name, const InterfaceAddress& address) {
    const auto same = [&](const ProbeListener& each) { return each.address == address.address; };
    if (address.address.empty() || std::any_of(listeners.begin(), listeners.end(), same)) return;
    const auto interface = std::find_if(node.interfaces.begin(), node.interfaces.end(),
                                        [&](const InterfaceFacts& each) { return each.name == name; });
    listeners.push_back({.interface = name,
                         .address = address.address,
                         .mtu = interface == node.interfaces.end() ? 0 : interface->mtu,
                         .rate_mbps = interface == node.interfaces.end() ? 0 : interface->rate_mbps,
                         .tcp_port = 0,
                         .udp_port = 0});
  };
  for (const SocketChoice& choice : predict_socket_interfaces(node.interfaces, own.environment)) {
    if (!is_local_only(choice)) add(choice.interface->name, choice.address);
  }
  for (std::size_t i = 0; i < node.candidates.size(); ++i) add(node.candidates[i], node.candidate_facts[i].address);
  return listeners;
}

/// What this rank is. Failures go to rank 0, so the others need not wait.
RankFacts inquire(const base::NcclSurroundings& surroundings, const std::vector<base::NcclConf>& conf,
                  const world::JobConnection& job, int rank, int local_rank, int local_ranks) {
  const base::Environment& environment = surroundings.environment;
  RankFacts own;
  try {
    own = collect_rank("/", environment, conf);
    collect_libraries(own, "/", surroundings);
    const Topology topology = Topology::live();
    collect_devices(own, topology, environment);
    if (local_rank == 0) {
      NodeFacts node = collect_node("/", topology::list_raw_interfaces());
      collect_names(node, base::host_name(), environment, Deadline::after(kResolveTime));
      collect_slurm(node, environment, Deadline::after(kResolveTime));
      collect_fabric_manager(node, Deadline::after(kResolveTime));
      collect_services(node, "/", environment, ::geteuid());
      collect_gpus(node, topology, local_ranks);
      collect_candidates(node, environment, job.launch.peer_hosts, !job.single_node);
      own.of_node = std::move(node);
    }
  } catch (const std::exception& error) {
    own = RankFacts{};
    own.failure = error.what();
    if (local_rank == 0) own.of_node.emplace();
  }
  own.rank = rank;
  own.local_rank = local_rank;
  own.node = job.node_rank.value_or(-1);
  own.host = base::host_name();
  return own;
}

void check_failures(const JobFacts& job) {
  for (const RankFacts& rank : job.ranks) {
    if (rank.failure.empty()) continue;
    throw Error{{.code = ErrorCode::unavailable,
                 .attempted = "examining the ranks of the job",
                 .cause = fmt::format("rank {} on {}: {}", rank.rank, rank.host, rank.failure),
                 .ranks = {rank.rank}}};
  }
}

}  // namespace

std::optional<JobFacts> examine_job(const world::JobConnection& connection, const base::Environment& environment,
                                    Deadline deadline, const std::string& program) {
  KeyValueStore& store = *connection.store;
  const int local_rank =
      connection.nodes ? connection.nodes->local_rank_of(store.rank()) : connection.local_rank.value_or(0);
  const std::size_t local_ranks = connection.nodes
                                      ? connection.nodes->ranks_on(connection.nodes->node_of(store.rank())).size()
                                      : static_cast<std::size_t>(connection.single_node ? store.world_size() : 0);
  const base::NcclSurroundings surroundings = surroundings_of_program(environment, program);
  const auto source = diagnostics::EnvironmentSource::process({}, surroundings);
  RankFacts own =
      inquire(surroundings, source.files, connection, store.rank(), local_rank, static_cast<int>(local_ranks));
  std::unique_ptr<ProbeAnswers> answers;
  if (own.of_node && own.failure.empty() && store.world_size() > 1 && !connection.single_node) {
    answers = std::make_unique<ProbeAnswers>(probed_addresses(own, *own.of_node));
    own.of_node->listeners = answers->listeners();
    own.of_node->token = answers->token();
  }
  const auto probe_all = [&](const std::vector<ProbeTarget>& targets) {
    return own.of_node ? probe(targets, own.of_node->interfaces, Deadline::after(kProbeTime))
                       : std::vector<ProbeResult>{};
  };
  auto job = gather(store, connection.nodes, own, describe(source, store.rank(), base::host_name(), false), probe_all,
                    deadline);
  if (job) check_failures(*job);
  return job;
}

}  // namespace ddp::tools::doctor
