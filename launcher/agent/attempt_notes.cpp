// What an attempt says about its ranks before they start: warnings, and --dry-run's description.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "agent/attempt.hpp"
#include "base/log.hpp"
#include "outcome/exit_error.hpp"
#include "placement/neighbours.hpp"
#include "placement/network_choice.hpp"

namespace ddp::launcher {
namespace {

/// What a reader of --dry-run looks for first.
constexpr std::array kFirstVariables{
    "RANK",        "LOCAL_RANK",           "WORLD_SIZE",      "LOCAL_WORLD_SIZE",   "GROUP_RANK",        "MASTER_ADDR",
    "MASTER_PORT", "CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"};
constexpr std::string_view kPmixPrefix = "PMIX_";

/// The place of a variable in --dry-run's list; others follow in the order of their names.
std::size_t place_of_variable(std::string_view name) {
  const auto* const found = std::find(kFirstVariables.begin(), kFirstVariables.end(), name);
  return static_cast<std::size_t>(found - kFirstVariables.begin());
}

}  // namespace

/// --dry-run: everything but the execution.
void Attempt::describe_ranks(const RankStore& store) {
  const auto& inherited = job_.environment.variables();
  std::string text;
  for (int local = 0; local < ranks_.num_ranks; ++local) {
    text += fmt::format("rank {} on {} (local rank {}): {}\n", global_rank(local), job_.host, local,
                        place_of(local).summary);
    text += fmt::format("  command: {}\n", fmt::join(arguments_of(job_.command, local), " "));
    std::vector<std::pair<std::string, std::string>> variables;
    int pmix = 0;
    for (const auto& [name, value] : environment_of(local, store)) {
      const auto before = inherited.find(name);
      if (before != inherited.end() && before->second == value) continue;
      name.starts_with(kPmixPrefix) ? void(++pmix) : void(variables.emplace_back(name, value));
    }
    std::stable_sort(variables.begin(), variables.end(), [](const auto& one, const auto& other) {
      return place_of_variable(one.first) < place_of_variable(other.first);
    });
    for (const auto& [name, value] : variables) text += fmt::format("  {}\n", topology::assignment(name, value));
    text += fmt::format("  PMIX_*: {} variables of the node's PMIx server\n", pmix);
  }
  if (job_console_) {
    send(control::RanksStarted{.epoch = plan_.epoch, .description = std::move(text)});
  } else {
    // Anything from the agent means that the job ends.
    base::write_text(STDOUT_FILENO, text, base::kPagePatience, agent_.fd());
    send(control::RanksStarted{.epoch = plan_.epoch});
  }
  for (int local = 0; local < ranks_.num_ranks; ++local) report_end(local, {});
}

void Attempt::report_conflicts() const {
  std::set<std::string> reported;
  for (const topology::RankPlan& place : places_) {
    for (const topology::Setting& setting : place.settings) {
      if (setting.conflict.empty()) continue;
      std::string line =
          fmt::format("{} is kept, but {}", topology::assignment(setting.name, setting.value), setting.conflict);
      if (reported.insert(line).second) base::write_stderr_line(fmt::format("ddprun: warning: {}", line));
    }
  }
}

void Attempt::report_shared_cores() const {
  const std::string warning =
      shared_cores_warning(places_, job_.placement->allowed(), read_neighbours("/proc", job_.environment, ::getpid()));
  if (!warning.empty()) base::write_stderr_line(fmt::format("ddprun: warning: {}", warning));
}

void Attempt::report_no_warm_workers() const {
  const std::string why = plan_.node_rank == 0 ? no_warm_workers_because(job_, plan_) : std::string{};
  if (!why.empty()) base::write_stderr_line(fmt::format("ddprun: --warm-workers has no effect: {}", why));
}

/// Of several nodes with an interface of this name, the first one says it.
void Attempt::report_local_interface() const {
  const std::string& chosen = plan_.nodes.at(static_cast<std::size_t>(plan_.node_rank)).socket_interface;
  const auto first = std::find_if(plan_.nodes.begin(), plan_.nodes.end(),
                                  [&](const auto& node) { return node.socket_interface == chosen; });
  const bool others =
      std::any_of(plan_.nodes.begin(), plan_.nodes.end(), [&](const auto& node) { return node.host != job_.host; });
  if (chosen.empty() || !others || first - plan_.nodes.begin() != plan_.node_rank) return;
  const std::string warning = warn_of_local_interface(job_.environment, chosen);
  if (!warning.empty()) base::write_stderr_line(fmt::format("ddprun: warning: {}", warning));
}

/// Once per job: a filter of ranks that are not there would hide all output.
void Attempt::check_ranks_filter() const {
  const auto& filter = job_.options.logs.ranks_filter;
  if (!filter || filter->empty() || plan_.node_rank != 0 || *filter->rbegin() < ranks_.world_size) return;
  const std::string what =
      fmt::format("--ranks-filter names rank {}, but the ranks are 0 to {}", *filter->rbegin(), ranks_.world_size - 1);
  if (*filter->begin() < ranks_.world_size) return base::write_stderr_line(fmt::format("ddprun: warning: {}", what));
  throw ExitError{kExitUsage,
                  {.code = ErrorCode::invalid_argument,
                   .attempted = "choosing the ranks whose output is shown",
                   .cause = what,
                   .hint = "name ranks of the job, or leave the filter out"}};
}

}  // namespace ddp::launcher
