#include "env/running_ranks.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/host_name.hpp"
#include "diagnostics/environment/environment_fold.hpp"
#include "diagnostics/environment/rank_environment.hpp"

namespace ddp::tools::env {
namespace {

namespace fs = std::filesystem;
using diagnostics::EnvironmentSource;

std::optional<int> number_in(std::string_view text) {
  int number = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || status != std::errc{} || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

/// Empty for what may not be read, or has gone.
std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// "4711 (name) S 4710 ...": the name may have anything.
int parent_of(const fs::path& folder) {
  const std::string text = read_file(folder / "stat");
  const auto name = text.rfind(") ");
  if (name == std::string::npos || name + 4 >= text.size()) return -1;
  const std::string_view rest = std::string_view(text).substr(name + 4);
  return number_in(rest.substr(0, rest.find(' '))).value_or(-1);
}

struct RankProcess {
  int pid = 0;
  int parent = 0;
  int rank = 0;
  bool numbered = false;  ///< by a launcher's RANK, which a step of agents does not have
};

std::vector<RankProcess> processes_of(const std::string& job, const std::string& step) {
  std::vector<RankProcess> found;
  std::error_code ignored;
  for (fs::directory_iterator entry{"/proc", ignored}, end; entry != end; entry.increment(ignored)) {
    const auto pid = number_in(entry->path().filename().string());
    if (!pid) continue;
    const auto variables = diagnostics::parse_environ(read_file(entry->path() / "environ"));
    const auto value = [&](const char* name) {
      const auto known = variables.find(name);
      return known == variables.end() ? std::string{} : known->second;
    };
    if (value("SLURM_JOB_ID") != job || (!step.empty() && value("SLURM_STEP_ID") != step)) continue;
    const auto by_launcher = number_in(value("RANK"));
    const auto rank = by_launcher ? by_launcher : number_in(value("SLURM_PROCID"));
    if (!rank || value("SLURM_STEP_ID").empty()) continue;  // a batch script
    found.push_back(
        {.pid = *pid, .parent = parent_of(entry->path()), .rank = *rank, .numbered = by_launcher.has_value()});
  }
  return found;
}

/// One process a rank, not what it has started.
std::map<int, int> first_processes(std::vector<RankProcess> all) {
  if (std::any_of(all.begin(), all.end(), [](const RankProcess& each) { return each.numbered; })) {
    std::erase_if(all, [](const RankProcess& each) { return !each.numbered; });
  }
  std::set<std::pair<int, int>> known;
  for (const RankProcess& each : all) known.emplace(each.pid, each.rank);
  std::map<int, int> first;
  for (const RankProcess& each : all) {
    if (known.contains({each.parent, each.rank})) continue;
    const auto [place, added] = first.emplace(each.rank, each.pid);
    if (!added) place->second = std::min(place->second, each.pid);
  }
  return first;
}

}  // namespace

EnvironmentReport report_of_running_job(const std::string& job) {
  const auto dot = job.find('.');
  const std::string number = job.substr(0, dot);
  const std::string step = dot == std::string::npos ? "" : job.substr(dot + 1);
  const std::string attempted = fmt::format("looking for the ranks of job {}", job);
  if (!number_in(number) || (dot != std::string::npos && !number_in(step))) {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = attempted,
                 .cause = "this is no number of a job or step of Slurm",
                 .native = {},
                 .ranks = {},
                 .hint = "squeue -s shows them: job:4711 or job:4711.0"}};
  }
  std::vector<diagnostics::RankEnvironment> ranks;
  for (const auto& [rank, pid] : first_processes(processes_of(number, step))) {
    ranks.push_back(describe(EnvironmentSource::of_process(pid), rank, base::host_name(), false));
  }
  if (ranks.empty()) {
    throw Error{
        {.code = ErrorCode::not_found,
         .attempted = attempted,
         .cause = "none of your processes on this host is one",
         .native = {},
         .ranks = {},
         .hint = fmt::format("on another node: srun --jobid={} --overlap -N1 -n1 -w NODE ddp-info ...", number)}};
  }
  return diagnostics::fold(ranks);
}

}  // namespace ddp::tools::env
