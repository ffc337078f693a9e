// Rules on software that must be the same everywhere.
#include <map>

#include <fmt/format.h>

#include "doctor/families.hpp"

namespace ddp::tools::doctor {
namespace {

void compare(const JobFacts& job, Findings& findings, const std::string& what, std::string RankFacts::*field) {
  std::map<std::string, std::vector<int>> ranks;
  for (const RankFacts& rank : job.ranks) {
    if (!(rank.*field).empty()) ranks[rank.*field].push_back(rank.rank);
  }
  if (ranks.size() < 2) return;
  for (const auto& [version, same] : ranks) findings.on_ranks(same, fmt::format("{} {}", what, version));
}

void check_libddp(const JobFacts& job, Findings& findings) { compare(job, findings, "libddp", &RankFacts::version); }

void check_pmix(const JobFacts& job, Findings& findings) { compare(job, findings, "PMIx", &RankFacts::pmix_version); }

constexpr Rule kVersionRules[] = {
    {.id = "libddp-versions",
     .severity = Severity::error,
     .title = "ranks run different versions of libddp",
     .meaning = "Their messages may not fit; programs fail while they wire up.",
     .fix = "install one version on all nodes, or load one module in the job script",
     .check = &check_libddp},
    {.id = "pmix-versions",
     .severity = Severity::warning,
     .title = "nodes run different versions of PMIx",
     .meaning = "Slurm's PMIx plugins of the nodes talk to each other; wire-up may fail or hang between versions.",
     .fix = "install one version of PMIx on all nodes, and restart slurmd",
     .check = &check_pmix},
};

}  // namespace

std::span<const Rule> version_rules() { return kVersionRules; }

}  // namespace ddp::tools::doctor
