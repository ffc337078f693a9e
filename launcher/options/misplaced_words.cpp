#include "options/misplaced_words.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "options/option_values.hpp"

namespace ddp::launcher {
namespace {

// Programs have their own --role, --log-dir or --module; these are launchers' alone.
constexpr std::array<std::string_view, 9> kLauncherOptions{"--nproc-per-node", "--nnodes",       "--node-rank",
                                                           "--standalone",     "--max-restarts", "--rdzv-backend",
                                                           "--rdzv-endpoint",  "--rdzv-id",      "--hostfile"};
constexpr std::array<std::string_view, 10> kLaunchers{
    "torchrun", "torch.distributed", "accelerate", "deepspeed", "ddprun", "horovodrun",
    "mpirun",   "mpiexec",           "srun",       "launch"};

std::string plain_name(std::string_view word) {
  std::string name{word.substr(0, word.find('='))};
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

bool names_launcher(std::string_view word) {
  return std::any_of(kLaunchers.begin(), kLaunchers.end(),
                     [&](std::string_view name) { return word.find(name) != std::string_view::npos; });
}

}  // namespace

bool is_surely_a_value(std::string_view word) {
  constexpr std::array<std::string_view, 4> kData{".json", ".txt", ".log", ".csv"};
  return word == "stderr" || word == "stdout" || word == "-" ||
         std::any_of(kData.begin(), kData.end(), [&](std::string_view ending) { return word.ends_with(ending); });
}

std::string hint_for_separate_value(std::string_view option, std::string_view word) {
  return fmt::format("option '{0}' takes its value behind a '=' only: write {0}={1}", option, printable(word));
}

std::string remark_on_program_options(std::span<const std::string> command, std::span<const std::string> given) {
  if (command.empty() || names_launcher(command.front())) return {};
  for (const std::string& word : command.subspan(1)) {
    if (word == "--" || names_launcher(word)) return {};
    const std::string name = plain_name(word);
    if (std::find(kLauncherOptions.begin(), kLauncherOptions.end(), name) == kLauncherOptions.end()) continue;
    if (std::find(given.begin(), given.end(), name) != given.end()) return {};
    return fmt::format(
        "'{}' stands behind the program, which gets it; ddprun's own options stand before it: ddprun {} ... {}",
        printable(word), name, printable(command.front()));
  }
  return {};
}

}  // namespace ddp::launcher
