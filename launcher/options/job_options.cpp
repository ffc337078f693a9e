// Options on the size of the job.
#include <fmt/format.h>

#include "options/job_size.hpp"
#include "options/option_groups.hpp"
#include "options/option_values.hpp"

namespace ddp::launcher {

void add_job_options(OptionTable& table, OptionDraft& draft) {
  LaunchOptions& options = draft.options;
  table.begin_group("Job");
  table
      .add_value("--nnodes", "N|MIN:MAX",
                 "Number of nodes, or minimum and maximum (default: all of the Slurm allocation or step, else 1).",
                 [&](const auto& source, const auto& text) {
                   options.nodes = parse_node_range(source, text);
                   options.nodes_given = true;
                 })
      .torchrun();
  table
      .add_value("--nproc-per-node", "N|cpu|gpu|auto",
                 fmt::format("Ranks per node, 1 to {} (default 1): a number, one per usable processor (cpu), one per "
                             "GPU (gpu), or one per GPU if there are any, else per processor (auto).",
                             kMaxRanksPerNode),
                 [&](const auto& source, const auto& text) { options.nproc = parse_ranks_per_node(source, text); })
      .torchrun()
      .choices({"cpu", "gpu", "auto"});
  table.add_flag("--standalone", "Run on this node alone, even in a Slurm allocation of several.", options.standalone)
      .torchrun();
  table.add_value(
      "--timeout", "SECONDS",
      "End the job after this time, with exit status 124; the report says where each rank stood.",
      [&](const auto& source, const auto& text) { options.timeout = parse_positive_seconds(source, text, kOneYear); });
}

void settle_job_options(const OptionTable& table, OptionDraft& draft) {
  LaunchOptions& options = draft.options;
  if (!options.standalone) return;
  if (options.nodes.min > 1)
    reject_combination(fmt::format("--standalone is a job on one node, but --nnodes requests {}", options.nodes.min),
                       "drop one of them");
  options.nodes = {};
  for (const char* name : {"--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf", "--node-rank",
                           "--master-addr", "--master-port"}) {
    if (table.given(name)) draft.notice(fmt::format("{} is ignored: --standalone needs no rendezvous", name));
  }
  options.rendezvous = {};
}

}  // namespace ddp::launcher
