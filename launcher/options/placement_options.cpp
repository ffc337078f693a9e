// Options on cores and GPUs.
#include <fmt/format.h>

#include "cli/option_values.hpp"
#include "options/option_groups.hpp"

namespace ddp::launcher {
namespace {

const std::vector<std::string> kNumaBindings{"node", "socket", "exclusive", "core-complex"};

/// The policy that comes closest to one of torchrun's.
BindPolicy policy_like(const std::string& numa_binding, OptionDraft& draft) {
  if (numa_binding == "socket") return BindPolicy::socket;
  if (numa_binding == "exclusive" || numa_binding == "core-complex")
    draft.notice(fmt::format(
        "--numa-binding {} means --bind numa: each rank gets its own cores in the NUMA node nearest to its GPU",
        numa_binding));
  return BindPolicy::numa;
}

/// What @p read makes of a word, whose Error(invalid_argument) becomes cli::UsageError.
template <class Read>
auto usage_checked(const Read& read) {
  try {
    return read();
  } catch (const Error& error) {
    throw cli::UsageError{error.attempted(), error.cause(), error.hint(), error.code()};
  }
}

// DDP_* variables are read only where no option decides.

void settle_bind(const OptionTable& table, OptionDraft& draft, const base::Environment& environment) {
  if (draft.bind) {
    if (table.given("--numa-binding")) draft.notice("--numa-binding is ignored: --bind overrides it");
  } else if (!draft.numa_binding.empty()) {
    draft.bind = policy_like(draft.numa_binding, draft);
  } else {
    draft.bind = usage_checked([&] { return topology::bind_policy_of(environment); });
  }
  draft.options.bind = draft.bind.value_or(BindPolicy::numa);
}

/// With --virtual-local-rank every rank uses the first GPU that it sees, so each must see its own only.
void settle_gpus(const OptionTable& table, OptionDraft& draft, const base::Environment& environment) {
  using topology::GpuVisibility;
  LaunchOptions& options = draft.options;
  options.gpus = draft.gpus ? *draft.gpus : usage_checked([&] { return topology::gpu_visibility_of(environment); });
  if (!options.virtual_local_rank) return;
  const bool by_variable = !draft.gpus && options.gpus == GpuVisibility::none;
  if (by_variable || (draft.gpus && *draft.gpus != GpuVisibility::one))
    cli::reject_combination(
        fmt::format("{} and {}={} are mutually exclusive: all ranks would use the same GPU",
                    table.given("--virtual-local-rank") ? "--virtual-local-rank" : "PET_VIRTUAL_LOCAL_RANK",
                    by_variable ? "DDP_GPUS" : "--gpus", to_string(options.gpus)),
        "each rank must see only its own GPU: --gpus one");
  options.gpus = GpuVisibility::one;
}

}  // namespace

void add_placement_options(OptionTable& table, OptionDraft& draft) {
  LaunchOptions& options = draft.options;
  table.begin_group("Placement");
  table
      .add_value("--bind", "POLICY",
                 "Cores for each rank: its share of the NUMA node nearest to its GPU (numa, the default), one core "
                 "(core), its share of the nearest package (socket), or all that ddprun may use (none).",
                 [&](const auto& source, const auto& text) {
                   draft.bind = usage_checked(
                       [&] { return topology::read_bind_policy("reading " + source, cli::printable(text)); });
                 })
      .choices({topology::kBindWords.begin(), topology::kBindWords.end()});
  table
      .add_value("--gpus", "WHICH",
                 "GPUs visible to a rank: all, ordered so that local rank i is GPU i (all, the default), only its own "
                 "(one), or those of ddprun, with CUDA_VISIBLE_DEVICES and the like unchanged (none).",
                 [&](const auto& source, const auto& text) {
                   draft.gpus = usage_checked(
                       [&] { return topology::read_gpu_visibility("reading " + source, cli::printable(text)); });
                 })
      .choices({topology::kGpuWords.begin(), topology::kGpuWords.end()});
  table
      .add_flag("--virtual-local-rank", "Set LOCAL_RANK to 0 for all ranks; each sees only its own GPU.",
                options.virtual_local_rank)
      .torchrun();
  table
      .add_value("--numa-binding", "POLICY",
                 "torchrun's form of --bind: node (numa), socket, exclusive or core-complex (both as numa).",
                 [&](const auto& source, const auto& text) {
                   draft.numa_binding = cli::parse_choice(source, text, kNumaBindings);
                 })
      .torchrun_without_variable()
      .choices(kNumaBindings);
  table.add_flag("--report-bindings", "Show the cores, GPU and NIC of each rank at the start.",
                 options.report_bindings);
  table.add_flag("--dry-run", "Show what would start, and where, without starting it.", options.dry_run);
}

void settle_placement_options(const OptionTable& table, OptionDraft& draft, const base::Environment& environment) {
  settle_bind(table, draft, environment);
  settle_gpus(table, draft, environment);
}

}  // namespace ddp::launcher
