#include "plugin_options.hpp"

#include <algorithm>
#include <cstdlib>
#include <vector>

#include <ddp/error.hpp>

#include "base/word_choice.hpp"

namespace ddp::srun_plugin {
namespace {

constexpr std::array<std::string_view, 4> kBindWords{"numa", "core", "socket", "none"};
constexpr std::array<std::string_view, 3> kGpuWords{"all", "one", "none"};
constexpr std::array<std::string_view, 3> kBackendWords{"auto", "nccl", "gloo"};

// How Slurm hands --ddp of sbatch or salloc to the srun of a step.
constexpr const char* kInheritedVariable = "_SLURM_SPANK_OPTION_ddp_ddp";

void check(std::string attempted, std::span<const std::string_view> accepted, std::string_view word) {
  if (std::find(accepted.begin(), accepted.end(), word) != accepted.end()) return;
  const std::vector<std::string> words(accepted.begin(), accepted.end());
  throw base::unknown_word(std::move(attempted), word, words);
}

void take_default(Lookup lookup, const char* variable, Option option, std::string& word) {
  const auto value = lookup(variable);
  if (!value || value->empty()) return;
  check(std::string("reading the environment variable ") + variable, accepted_words(option), *value);
  word = *value;
}

}  // namespace

const std::array<OptionEntry, kOptions>& option_table() {
  static constexpr std::array<OptionEntry, kOptions> kTable{{
      {"ddp", nullptr,
       "start a data-parallel job: PMIx, torchrun's environment and store, and each task bound next to its GPU"},
      {"ddp-bind", "numa|core|socket|none",
       "with --ddp: bind tasks to a share of the nearest NUMA node's cores (default), to one core, or to a share of "
       "the nearest socket's"},
      {"ddp-gpus", "all|one|none",
       "with --ddp: tasks see all GPUs in an order in which local rank i is GPU i (default), or their own only; none "
       "sets nothing"},
      {"ddp-backend", "auto|nccl|gloo", "with --ddp: backend of libddp's process groups (default auto)"},
      {"ddp-verbose", nullptr, "with --ddp: each task says what it was given"},
  }};
  return kTable;
}

std::span<const std::string_view> accepted_words(Option option) {
  switch (option) {
    case Option::bind: return kBindWords;
    case Option::gpus: return kGpuWords;
    case Option::backend: return kBackendWords;
    case Option::ddp:
    case Option::verbose: return {};
  }
  return {};
}

void check_word(Option option, std::string_view word) {
  check(std::string("reading --") + option_table().at(static_cast<std::size_t>(option)).name, accepted_words(option),
        word);
}

void set_option(PluginOptions& options, Option option, const char* value) {
  const std::string word = value != nullptr ? value : "";
  if (!accepted_words(option).empty()) check_word(option, word);
  switch (option) {
    case Option::ddp: options.enabled = true; break;
    case Option::bind: options.bind = word; break;
    case Option::gpus: options.gpus = word; break;
    case Option::backend: options.backend = word; break;
    case Option::verbose: options.verbose = true; break;
  }
}

std::optional<std::string> process_variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? std::optional<std::string>{value} : std::nullopt;
}

PluginOptions default_options(Lookup lookup) {
  PluginOptions options;
  take_default(lookup, "DDP_BIND", Option::bind, options.bind);
  take_default(lookup, "DDP_GPUS", Option::gpus, options.gpus);
  take_default(lookup, "DDP_BACKEND", Option::backend, options.backend);
  return options;
}

bool enabled_by_environment(Lookup lookup) {
  const auto own = lookup("SLURM_DDP");
  if (own && !own->empty() && *own != "0") return true;
  return lookup(kInheritedVariable).has_value() || lookup(kUserVariable).has_value();
}

}  // namespace ddp::srun_plugin
