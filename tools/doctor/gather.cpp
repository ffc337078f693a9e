#include "doctor/gather.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include <ddp/diagnostics.hpp>
#include <ddp/error.hpp>

#include "diagnostics/environment/environment_dump.hpp"

namespace ddp::tools::doctor {
namespace {

// Keys that begin with "ddp." are libddp's own.
constexpr std::string_view kEnvironmentKey = "ddp-info.doctor.environment";
constexpr std::string_view kFactsKey = "ddp-info.doctor.facts";
constexpr std::string_view kProbesKey = "ddp-info.doctor.probes";

/// Facts that cannot be sent become such as say so: the other ranks must not wait for them.
Bytes encode_or_complain(const RankFacts& facts) {
  try {
    return encode(facts);
  } catch (const Error& error) {
    RankFacts complaint;
    complaint.failure = error.what();
    complaint.rank = facts.rank;
    complaint.local_rank = facts.local_rank;
    complaint.node = facts.node;
    complaint.host = facts.host;
    if (facts.of_node) complaint.of_node.emplace();
    return encode(complaint);
  }
}

RankFacts facts_of(KeyValueStore& store, int rank, Deadline deadline) {
  return decode_rank_facts(store.get(rank, kFactsKey, deadline));
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
      store.put(kProbesKey, encode(report));
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
    if (nodes.num_nodes() > 1) record.probes = decode_probe_report(store.get(ranks.front(), kProbesKey, deadline));
    job.nodes.push_back(std::move(record));
  }
  return job;
}

}  // namespace ddp::tools::doctor
