#include "plugin_options.hpp"

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "base/backend_words.hpp"
#include "base/word_choice.hpp"

namespace ddp::srun_plugin {
namespace {

// How Slurm passes --ddp of sbatch or salloc to the srun of a step.
constexpr const char* kInheritedVariable = "_SLURM_SPANK_OPTION_ddp_ddp";

void take_default(Lookup lookup, const char* variable, Option option, PluginOptions& options) {
  const auto value = lookup(variable);
  if (!value || value->empty()) return;
  set_word(options, option, std::string("reading the environment variable ") + variable, *value);
}

}  // namespace

const std::array<OptionEntry, kOptions>& option_table() {
  static constexpr std::array<OptionEntry, kOptions> kTable{{
      {"ddp", nullptr,
       "start a data-parallel job: PMIx, torchrun's environment and store, tasks bound near their GPUs"},
      {"ddp-bind", "numa|core|socket|none",
       "with --ddp: bind tasks to a share of the nearest NUMA node's cores (default), to one core, or to a share of "
       "the nearest socket's"},
      {"ddp-gpus", "all|one|none",
       "with --ddp: tasks see all GPUs, ordered so that local rank i is GPU i (default), or their own only; none sets "
       "nothing"},
      {"ddp-backend", base::kBackendChoices, "with --ddp: backend of libddp's process groups (default auto)"},
      {"ddp-verbose", nullptr, "with --ddp: each task prints what it was given"},
      {"ddp-dump", "FILE",
       "with --ddp: write all tasks' environment variables, where they came from and what is wrong with them, to "
       "standard error, or with =FILE to this file on the first task's node (JSON)",
       true},
      {"ddp-doctor", nullptr,
       "with --ddp: examine all nodes of the step (ddp-info doctor) before the program starts; errors end the step"},
  }};
  return kTable;
}

std::span<const std::string_view> accepted_words(Option option) {
  switch (option) {
    case Option::bind: return topology::kBindWords;
    case Option::gpus: return topology::kGpuWords;
    case Option::backend: return base::kBackendWords;
    case Option::ddp:
    case Option::verbose:
    case Option::dump:
    case Option::doctor: return {};
  }
  return {};
}

void set_option(PluginOptions& options, Option option, const char* value) {
  switch (option) {
    case Option::ddp: options.enabled = true; return;
    case Option::verbose: options.verbose = true; return;
    case Option::doctor: options.doctor = true; return;
    case Option::dump: options.dump = value != nullptr && *value != '\0' ? value : "stderr"; return;
    case Option::bind:
    case Option::gpus:
    case Option::backend: break;
  }
  set_word(options, option, std::string("reading --") + option_table().at(static_cast<std::size_t>(option)).name,
           value != nullptr ? value : "");
}

void set_word(PluginOptions& options, Option option, std::string attempted, std::string_view word) {
  if (option == Option::bind) {
    options.bind = topology::read_bind_policy(std::move(attempted), word);
  } else if (option == Option::gpus) {
    options.gpus = topology::read_gpu_visibility(std::move(attempted), word);
  } else if (std::find(base::kBackendWords.begin(), base::kBackendWords.end(), word) != base::kBackendWords.end()) {
    options.backend = word;
  } else {
    throw base::unknown_word(std::move(attempted), word,
                             std::vector<std::string>(base::kBackendWords.begin(), base::kBackendWords.end()));
  }
}

std::optional<std::string> process_variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? std::optional<std::string>{value} : std::nullopt;
}

PluginOptions default_options(Lookup lookup) {
  PluginOptions options;
  take_default(lookup, "DDP_BIND", Option::bind, options);
  take_default(lookup, "DDP_GPUS", Option::gpus, options);
  take_default(lookup, "DDP_BACKEND", Option::backend, options);
  return options;
}

std::optional<bool> own_switch(Lookup lookup) {
  const auto value = lookup("SLURM_DDP");
  if (!value || value->empty()) return std::nullopt;
  std::string word = *value;
  for (char& letter : word) {
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  }
  static const std::vector<std::string> kWords{"1", "yes", "true", "on", "0", "no", "false", "off"};
  const auto found = std::find(kWords.begin(), kWords.end(), word);
  if (found == kWords.end()) throw base::unknown_word("reading the environment variable SLURM_DDP", *value, kWords);
  return found - kWords.begin() < 4;
}

bool enabled_by_environment(Lookup lookup) {
  return lookup(kInheritedVariable).has_value() || lookup(kUserVariable).has_value();
}

}  // namespace ddp::srun_plugin
