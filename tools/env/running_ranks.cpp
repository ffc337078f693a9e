#include "env/running_ranks.hpp"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/error.hpp>

#include "base/env_table.hpp"
#include "base/files.hpp"
#include "base/host_name.hpp"
#include "base/message.hpp"
#include "command/job_nodes.hpp"
#include "diagnostics/environment/environment_fold.hpp"
#include "diagnostics/environment/environment_message.hpp"
#include "diagnostics/environment/rank_environment.hpp"

namespace ddp::tools::env {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kPatience{30};  // for a step that srun starts beside the ranks

std::string looking_for(const std::string& job) { return fmt::format("looking for the ranks of job {}", job); }

std::optional<int> number_in(std::string_view text) {
  int number = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || status != std::errc{} || end != text.data() + text.size() || number < 0) return std::nullopt;
  return number;
}

/// Empty for what may not be read, or has gone.
std::string read_file(const fs::path& path) { return base::read_file(path.string()).value_or(std::string{}); }

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
  bool spread = false;    ///< over several nodes, its step
};

struct WantedRanks {
  std::string job;
  std::string step;  ///< empty: of all but this process' own
};

/// Throws Error(invalid_argument).
WantedRanks wanted_ranks(const std::string& text) {
  const auto dot = text.find('.');
  WantedRanks wanted{.job = text.substr(0, dot), .step = dot == std::string::npos ? "" : text.substr(dot + 1)};
  if (number_in(wanted.job) && (dot == std::string::npos || number_in(wanted.step))) return wanted;
  throw Error{{.code = ErrorCode::invalid_argument,
               .attempted = looking_for(text),
               .cause = "this is not the number of a job or step of Slurm",
               .hint = "squeue -s shows them: job:4711 or job:4711.0"}};
}

std::vector<RankProcess> processes_of(const WantedRanks& wanted) {
  std::vector<RankProcess> found;
  const auto own = base::Environment::process();
  const std::string own_step = own.raw("SLURM_JOB_ID") == wanted.job ? own.raw("SLURM_STEP_ID").value_or("") : "";
  std::error_code ignored;
  for (fs::directory_iterator entry{"/proc", ignored}, end; entry != end; entry.increment(ignored)) {
    const auto pid = number_in(entry->path().filename().string());
    if (!pid) continue;
    const auto variables = diagnostics::parse_environ(read_file(entry->path() / "environ"));
    const auto value = [&](const char* name) {
      const auto known = variables.find(name);
      return known == variables.end() ? std::string{} : known->second;
    };
    const std::string step = value("SLURM_STEP_ID");
    if (value("SLURM_JOB_ID") != wanted.job || step.empty()) continue;  // a batch script has no step
    if (wanted.step.empty() ? step == own_step : step != wanted.step) continue;
    const auto by_launcher = number_in(value("RANK"));
    const auto rank = by_launcher ? by_launcher : number_in(value("SLURM_PROCID"));
    if (!rank) continue;
    found.push_back({.pid = *pid,
                     .parent = parent_of(entry->path()),
                     .rank = *rank,
                     .numbered = by_launcher.has_value(),
                     .spread = number_in(value("SLURM_STEP_NUM_NODES")).value_or(1) > 1});
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

/// Of this host, by rank.
struct LocalRanks {
  std::vector<diagnostics::RankEnvironment> ranks;
  bool spread = false;  ///< the step has other nodes, too
};

/// From each node of a job to the process that was asked.
struct NodeRanks {
  std::vector<diagnostics::RankEnvironment> ranks;
};
constexpr auto description(const NodeRanks*) {
  return base::describe({"environments of a node's ranks", 1}, base::fields<&NodeRanks::ranks>());
}

LocalRanks local_ranks(const WantedRanks& wanted) {
  const auto processes = processes_of(wanted);
  LocalRanks found;
  found.spread = std::any_of(processes.begin(), processes.end(), [](const RankProcess& each) { return each.spread; });
  for (const auto& [rank, pid] : first_processes(processes)) {
    found.ranks.push_back(describe(diagnostics::EnvironmentSource::of_process(pid), rank, base::host_name(), false));
  }
  return found;
}

/// Of all nodes of the job. Throws Error also where one of them does not answer.
std::vector<diagnostics::RankEnvironment> ranks_of_all_nodes(const std::string& job) {
  const NodeAnswers answers = ask_nodes_of_job(job, {"env", "--ranks-of=" + job}, Deadline::after(kPatience));
  if (!answers.notes.empty()) {
    throw Error{{.code = ErrorCode::unavailable,
                 .attempted = looking_for(job),
                 .cause = fmt::format("{}", fmt::join(answers.notes, "; ")),
                 .hint = "the variables of only some ranks would not show how jobs differ"}};
  }
  std::vector<diagnostics::RankEnvironment> ranks;
  for (const Bytes& message : answers.messages) {
    auto of_node = base::decode<NodeRanks>(message).ranks;
    ranks.insert(ranks.end(), std::make_move_iterator(of_node.begin()), std::make_move_iterator(of_node.end()));
  }
  std::sort(ranks.begin(), ranks.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
  return ranks;
}

}  // namespace

std::string lines_of_running_ranks(const std::string& job) {
  const NodeRanks own{.ranks = local_ranks(wanted_ranks(job)).ranks};
  return helper_lines(base::host_name(), base::encode(own));
}

EnvironmentReport report_of_running_job(const std::string& job) {
  const WantedRanks wanted = wanted_ranks(job);
  LocalRanks found = local_ranks(wanted);
  std::string why_not;
  if (found.spread) {
    found.ranks = ranks_of_all_nodes(job);
  } else if (found.ranks.empty()) {
    try {
      found.ranks = ranks_of_all_nodes(job);
    } catch (const Error& error) {
      why_not = fmt::format(", and {}", error.cause());
    }
  }
  if (found.ranks.empty()) {
    throw Error{{.code = ErrorCode::not_found,
                 .attempted = looking_for(job),
                 .cause = "none of your processes on this host is one" + why_not,
                 .hint = "squeue --me --steps lists those that run"}};
  }
  return diagnostics::fold(found.ranks);
}

}  // namespace ddp::tools::env
