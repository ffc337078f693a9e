#include "doctor/examination.hpp"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include <ddp/diagnostics.hpp>
#include <ddp/error.hpp>

#include "base/host_name.hpp"
#include "base/message.hpp"
#include "command/job_surroundings.hpp"
#include "diagnostics/environment/environment_dump.hpp"
#include "doctor/facts_fields.hpp"
#include "doctor/nccl_network.hpp"
#include "examination.hpp"

namespace ddp::tools::doctor {
namespace {

// Keys that begin with "ddp." are libddp's own.
constexpr std::string_view kEnvironmentKey = "ddp-info.doctor.environment";
constexpr std::string_view kFactsKey = "ddp-info.doctor.facts";
constexpr std::string_view kProbesKey = "ddp-info.doctor.probes";

/// Facts that cannot be sent become such as say so: the other ranks must not wait for them.
Bytes encode_or_complain(const RankFacts& facts) {
  try {
    return base::encode(facts);
  } catch (const Error& error) {
    RankFacts complaint;
    complaint.failure = error.what();
    complaint.rank = facts.rank;
    complaint.local_rank = facts.local_rank;
    complaint.node = facts.node;
    complaint.host = facts.host;
    if (facts.of_node) complaint.of_node.emplace();
    return base::encode(complaint);
  }
}

RankFacts facts_of(KeyValueStore& store, int rank, Deadline deadline) {
  return base::decode<RankFacts>(store.get(rank, kFactsKey, deadline));
}

world::NodeMap map_by_facts(KeyValueStore& store, Deadline deadline) {
  std::vector<std::pair<int, std::string>> known;  // node as the launcher numbers it, host
  std::vector<int> node_of;
  for (int rank = 0; rank < store.world_size(); ++rank) {
    const RankFacts facts = facts_of(store, rank, deadline);
    const std::pair key{facts.node, facts.node >= 0 ? std::string{} : facts.host};
    auto found = std::find(known.begin(), known.end(), key);
    if (found == known.end()) found = known.insert(known.end(), key);
    node_of.push_back(static_cast<int>(found - known.begin()));
  }
  return world::NodeMap{std::move(node_of)};
}

std::vector<ProbeTarget> targets_of(KeyValueStore& store, const world::NodeMap& nodes, int node, Deadline deadline) {
  std::vector<ProbeTarget> targets;
  for (const int other : probed_nodes(node, nodes.num_nodes())) {
    const RankFacts facts = facts_of(store, nodes.ranks_on(other).front(), deadline);
    if (!facts.of_node) continue;
    for (const ProbeListener& listener : facts.of_node->listeners) {
      targets.push_back({.to_node = other, .listener = listener, .token = facts.of_node->token});
    }
  }
  return targets;
}

std::int64_t now_ms() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
}

}  // namespace

std::optional<JobFacts> gather(KeyValueStore& store, const std::optional<world::NodeMap>& given, const RankFacts& own,
                               const diagnostics::RankEnvironment& environment, const ProbeFunction& probe,
                               Deadline deadline) {
  const int rank = store.rank();
  diagnostics::put_environment(store, kEnvironmentKey, environment);
  store.put(kFactsKey, encode_or_complain(own));
  store.fence(deadline);
  ProbeReport report;
  report.clock_ms = now_ms();
  const world::NodeMap nodes = given ? *given : map_by_facts(store, deadline);
  const int node = nodes.node_of(rank);
  if (nodes.num_nodes() > 1) {
    if (nodes.ranks_on(node).front() == rank) {
      report.results = probe(targets_of(store, nodes, node, deadline));
      store.put(kProbesKey, base::encode(report));
    }
    store.fence(deadline);
  }
  if (rank != 0) return std::nullopt;

  JobFacts job;
  EnvironmentReport environments = diagnostics::collect_environments(store, kEnvironmentKey, deadline);
  job.environment = std::move(environments.findings);
  job.nccl = std::move(environments.nccl);
  for (int each = 0; each < store.world_size(); ++each) {
    job.ranks.push_back(each == 0 ? own : facts_of(store, each, deadline));
    job.ranks.back().node = nodes.node_of(each);
  }
  for (int number = 0; number < nodes.num_nodes(); ++number) {
    const auto& ranks = nodes.ranks_on(number);
    RankFacts& first = job.ranks[static_cast<std::size_t>(ranks.front())];
    NodeRecord record{.host = first.host, .ranks = ranks};
    if (first.of_node) record.facts = *first.of_node;
    if (nodes.num_nodes() > 1)
      record.probes = base::decode<ProbeReport>(store.get(ranks.front(), kProbesKey, deadline));
    job.nodes.push_back(std::move(record));
  }
  return job;
}

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
                  const world::JobConnection& job, int rank, int local_rank) {
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
      collect_gpus(node, topology);
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
  const base::NcclSurroundings surroundings = surroundings_of_program(environment, program);
  const auto source = diagnostics::EnvironmentSource::process({}, surroundings);
  RankFacts own = inquire(surroundings, source.files, connection, store.rank(), local_rank);
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
