#include "env/dump_diff.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include <ddp/error.hpp>

namespace ddp::tools::env {
namespace {

// Different in every job, and of no other interest.
constexpr std::array<std::string_view, 4> kOfTheJob{"SLURM", "PMIX_", "PMI_", "DDPRUN_"};

bool of_the_job(std::string_view name) {
  return std::any_of(kOfTheJob.begin(), kOfTheJob.end(), [&](std::string_view each) { return name.starts_with(each); });
}

/// RANK, LOCAL_RANK, OMPI_COMM_WORLD_RANK and the like, and what is each rank's number under another name. NCCL's
/// (NCCL_TOPO_DUMP_FILE_RANK) choose a rank.
bool numbers_ranks(const EnvironmentReport::Variable& variable) {
  return (variable.name.ends_with("RANK") && !variable.name.starts_with("NCCL_")) ||
         std::all_of(variable.values.begin(), variable.values.end(), [](const EnvironmentReport::Value& each) {
           return each.ranks.size() == 1 && each.value == std::to_string(each.ranks.front());
         });
}

std::string on(const std::vector<int>& ranks, const EnvironmentReport& report) {
  return ranks.size() == report.hosts.size() ? "" : fmt::format(" ({})", format_ranks(ranks));
}

std::set<std::string> lines(const EnvironmentReport& report) {
  std::set<std::string> all;
  for (const auto& library : report.nccl) {
    all.insert(library.path.empty()
                   ? fmt::format("NCCL: none{}", on(library.ranks, report))
                   : fmt::format("NCCL: {} {}{}", library.version, library.path, on(library.ranks, report)));
  }
  for (const auto& file : report.files) {
    all.insert(fmt::format("{}: digest {}{}", file.path, file.digest, on(file.ranks, report)));
  }
  for (const auto& variable : report.variables) {
    if (of_the_job(variable.name) || numbers_ranks(variable)) continue;
    for (const auto& value : variable.values) {
      all.insert(fmt::format("{}={}{} [{}]", variable.name, value.value, on(value.ranks, report), value.origin));
    }
  }
  return all;
}

}  // namespace

std::string format_diff(const EnvironmentReport& a, const EnvironmentReport& b) {
  const auto in_a = lines(a);
  const auto in_b = lines(b);
  std::vector<std::pair<std::string, char>> different;
  for (const std::string& line : in_a) {
    if (!in_b.contains(line)) different.emplace_back(line, '-');
  }
  for (const std::string& line : in_b) {
    if (!in_a.contains(line)) different.emplace_back(line, '+');
  }
  std::stable_sort(different.begin(), different.end(), [](const auto& x, const auto& y) {
    const auto name = [](const std::string& line) {
      return std::string_view(line).substr(0, line.find_first_of("=:"));
    };
    return name(x.first) < name(y.first);
  });
  std::string text;
  for (const auto& [line, sign] : different) text += fmt::format("{} {}\n", sign, line);
  return text.empty() ? "no differences\n" : text;
}

}  // namespace ddp::tools::env
