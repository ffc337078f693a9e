#include "slurm/slurmstepd.hpp"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <utility>

#include <fmt/format.h>

namespace ddp::launcher {
namespace {

/// 0 where that is not to be seen.
pid_t parent_of(pid_t pid) {
  std::ifstream status(fmt::format("/proc/{}/status", pid));
  for (std::string word; status >> word;) {
    pid_t parent = 0;
    if (word == "PPid:" && status >> parent) return parent;
  }
  return 0;
}

bool is_number(std::string_view text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](unsigned char each) { return std::isdigit(each) != 0; });
}

}  // namespace

bool is_slurmstepd(pid_t pid) {
  std::string name;
  std::ifstream(fmt::format("/proc/{}/comm", pid)) >> name;
  return name == "slurmstepd";
}

std::string step_above() {
  pid_t pid = ::getppid();
  while (pid > 0 && !is_slurmstepd(pid)) pid = parent_of(pid);
  if (pid <= 0) return {};
  std::string title;  // "slurmstepd: [1234.0]"
  std::getline(std::ifstream(fmt::format("/proc/{}/cmdline", pid)), title, '\0');
  const auto begin = title.find('[');
  const auto end = title.find(']');
  if (begin == std::string::npos || end == std::string::npos || end < begin) return {};
  return title.substr(begin + 1, end - begin - 1);
}

base::Environment without_foreign_step(const base::Environment& environment, std::string_view above) {
  const auto dot = above.find('.');
  if (dot == std::string_view::npos || !is_number(above.substr(0, dot))) return environment;
  const bool same_job = above.substr(0, dot) == environment.raw("SLURM_JOB_ID").value_or("");
  const bool in_task = is_number(above.substr(dot + 1));
  if (in_task && (same_job || environment.has("SLURM_HET_SIZE"))) return environment;
  auto variables = environment.variables();
  std::erase_if(variables, [](const auto& variable) {
    return variable.first.starts_with("SLURM_STEP_") || variable.first == "SLURM_STEPID";
  });
  return base::Environment{std::move(variables)};
}

}  // namespace ddp::launcher
