// -n N (mpirun's -np): the ranks of the job, all together, which are spread over its nodes.
#include <algorithm>
#include <string>

#include <fmt/format.h>

#include "cli/option_values.hpp"
#include "options/host_list.hpp"
#include "options/option_groups.hpp"

namespace ddp::launcher {
namespace {

/// Fills the hosts of a list in order, as mpirun and horovodrun do; those without a number share what is left evenly.
void fill_hosts(int total, std::vector<HostEntry>& hosts) {
  const bool numbered = std::any_of(hosts.begin(), hosts.end(), [](const HostEntry& host) { return host.ranks > 0; });
  if (!numbered) {
    const int count = std::min(total, static_cast<int>(hosts.size()));
    hosts.resize(static_cast<std::size_t>(count));
    for (int i = 0; i < count; ++i)
      hosts[static_cast<std::size_t>(i)].ranks = total / count + (i < total % count ? 1 : 0);
    return;
  }
  int slots = 0;
  for (const HostEntry& host : hosts) slots += host.ranks;
  if (total > slots) {
    cli::reject_combination(fmt::format("-n {} is more than the {} of the host list", total, slots),
                            "start fewer ranks, or give the hosts more");
  }
  int left = total;
  std::erase_if(hosts, [&left](HostEntry& host) {
    host.ranks = std::min(host.ranks, left);
    left -= host.ranks;
    return host.ranks == 0;
  });
}

}  // namespace

void add_total_ranks(OptionTable& table, OptionDraft& draft) {
  table.add_value("-n,--num-proc", "N",
                  "Ranks of the whole job, instead of --nproc-per-node; also -np N. The hosts of a list are "
                  "filled in order; the nodes of an allocation get equally many.",
                  [&](const auto& source, const auto& text) {
                    draft.total_ranks = cli::parse_count(source, text, kMaxRanksPerNode * 64);
                  });
}

void settle_total_ranks(const OptionTable& table, OptionDraft& draft, const base::Environment& environment) {
  LaunchOptions& options = draft.options;
  if (draft.total_ranks == 0) return;
  const int total = draft.total_ranks;
  if (table.given("--nproc-per-node")) {
    cli::reject_combination("-n counts the ranks of the job, --nproc-per-node those of a node", "drop one of them");
  }
  if (environment.raw(kAgentHostVariable)) return;  // the frontend has counted
  if (!options.hosts.empty()) {
    if (options.spares > 0)
      cli::reject_combination("-n fills the host list, and --spares holds back some of it", "give --nproc-per-node");
    return fill_hosts(total, options.hosts);
  }
  int nodes = options.nodes.max;
  if (!options.nodes_given && !options.standalone)
    nodes = std::max(1, environment.number("SLURM_JOB_NUM_NODES").value_or(1) - options.spares);
  if (options.nodes.min != options.nodes.max)
    cli::reject_combination("-n needs a fixed number of nodes, and --nnodes gives a range", "drop one of them");
  if (total % nodes != 0) {
    cli::reject_combination(fmt::format("{} ranks cannot be spread evenly over {} nodes", total, nodes),
                            "give a multiple, or a host list with numbers: -H n0:3,n1:2");
  }
  if (total / nodes > kMaxRanksPerNode)
    cli::reject_combination(fmt::format("-n {} is more than {} ranks of a node", total, kMaxRanksPerNode),
                            "start fewer");
  options.nproc = {.kind = RanksPerNode::Kind::number, .number = total / nodes};
}

}  // namespace ddp::launcher
