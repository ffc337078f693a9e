#include "diagnostics/environment/environment_fold.hpp"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <tuple>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "diagnostics/environment/redaction.hpp"
#include "diagnostics/environment/variable_table.hpp"

namespace ddp::diagnostics {
namespace {

using Report = EnvironmentReport;

/// Adds @p rank to the element for which @p same holds, else to a new one.
template <typename Element, typename Same, typename Make>
void put_rank(std::vector<Element>& elements, int rank, Same same, Make make) {
  auto found = std::find_if(elements.begin(), elements.end(), same);
  if (found == elements.end()) found = elements.insert(found, make());
  found->ranks.push_back(rank);
}

bool same_library(const Report::Library& a, const Report::Library& b) {
  return std::tie(a.path, a.found, a.version, a.names, a.problem) ==
         std::tie(b.path, b.found, b.version, b.names, b.problem);
}

/// "'Ring' on ranks 0-7"; the value's own words where it has none.
std::string value_on(const std::string& value, const std::vector<int>& ranks) {
  return fmt::format("{} on {}", value.empty() ? "empty" : fmt::format("'{}'", value), format_ranks(ranks));
}

std::vector<int> without(const std::vector<int>& all, const std::vector<int>& some) {
  std::vector<int> rest;
  std::set_difference(all.begin(), all.end(), some.begin(), some.end(), std::back_inserter(rest));
  return rest;
}

/// Ranks by value, whatever set it. An empty value counts as none.
std::map<std::string, std::vector<int>> ranks_by_value(const Report::Variable& variable) {
  std::map<std::string, std::vector<int>> by_value;
  for (const Report::Value& value : variable.values) {
    if (value.value.empty()) continue;
    auto& ranks = by_value[value.value];
    std::vector<int> merged;
    std::merge(ranks.begin(), ranks.end(), value.ranks.begin(), value.ranks.end(), std::back_inserter(merged));
    ranks = std::move(merged);
  }
  return by_value;
}

class Differences {
 public:
  Differences(Report& report, std::vector<int> all) : report_(report), all_(std::move(all)) {}

  void find() {
    for (const Report::Variable& variable : report_.variables) compare(variable);
    compare_libraries();
    compare_files();
  }

 private:
  void compare(const Report::Variable& variable) {
    const Variable* known = find_variable(variable.name);
    if (known == nullptr || !known->equal_on_all_ranks || is_secret(variable.name)) return;
    const bool dead = known->standing == Standing::removed || known->standing == Standing::unread;
    const auto by_value = ranks_by_value(variable);
    std::vector<int> set;
    std::string cause;
    for (const auto& [value, ranks] : by_value) {
      set.insert(set.end(), ranks.begin(), ranks.end());
      cause += fmt::format("{}{}", cause.empty() ? "" : ", ", value_on(value, ranks));
    }
    std::sort(set.begin(), set.end());
    const std::vector<int> unset = without(all_, set);
    if (dead || by_value.empty() || (by_value.size() == 1 && unset.empty())) return;
    if (!unset.empty()) cause += fmt::format(", unset on {}", format_ranks(unset));
    const auto in_file = [&](const Report::Value& value) { return value.origin.starts_with('/'); };
    if (std::any_of(variable.values.begin(), variable.values.end(), in_file)) by_files_.insert(variable.name);
    report_.findings.push_back({.rule = "env-differs",
                                .error = true,
                                .variable = variable.name,
                                .text = fmt::format("{} must be equal on all ranks, but is {}", variable.name, cause),
                                .remedy = by_files_.contains(variable.name)
                                              ? "make the files nccl.conf of all nodes equal, or export it to all ranks"
                                              : "export one value to all ranks",
                                .ranks = all_});
  }

  void compare_libraries() {
    std::map<std::string, std::vector<int>> versions;
    for (const Report::Library& library : report_.nccl) {
      if (library.path.empty()) continue;
      auto& ranks = versions[library.version.empty() ? library.path : library.version];
      ranks.insert(ranks.end(), library.ranks.begin(), library.ranks.end());
    }
    if (versions.size() < 2) return;
    std::string cause;
    for (auto& [version, ranks] : versions) {
      std::sort(ranks.begin(), ranks.end());
      cause += fmt::format("{}{} on {}", cause.empty() ? "" : ", ", version, format_ranks(ranks));
    }
    report_.findings.push_back(
        {.rule = "env-nccl-version",
         .error = true,
         .text = fmt::format("ranks would load different NCCL versions: {}", cause),
         .remedy = "make LD_LIBRARY_PATH, the Python environment or the container the same on all nodes",
         .ranks = all_});
  }

  /// Files with equal settings under the same name; where what differs is named already, that is enough.
  void compare_files() {
    if (!by_files_.empty()) return;
    std::map<std::string, std::vector<const Report::File*>> by_path;
    for (const Report::File& file : report_.files) by_path[file.path].push_back(&file);
    for (const auto& [path, files] : by_path) {
      std::vector<int> having;
      for (const Report::File* file : files) having.insert(having.end(), file->ranks.begin(), file->ranks.end());
      std::sort(having.begin(), having.end());
      const std::vector<int> lacking = without(all_, having);
      if (files.size() == 1 && lacking.empty()) continue;
      std::string cause;
      for (const Report::File* file : files)
        cause += fmt::format(", {} on {}", file->digest, format_ranks(file->ranks));
      if (!lacking.empty()) cause += fmt::format(", absent on {}", format_ranks(lacking));
      report_.findings.push_back({.rule = "env-conf",
                                  .error = false,
                                  .text = fmt::format("{} differs: {}", path, cause.substr(2)),
                                  .remedy = "make it the same on all nodes, unless nodes are meant to differ",
                                  .ranks = lacking.empty() ? having : lacking});
    }
  }

  Report& report_;
  std::vector<int> all_;
  std::set<std::string> by_files_;
};

}  // namespace

EnvironmentReport fold(const std::vector<RankEnvironment>& ranks) {
  Report report;
  std::map<std::string, Report::Variable, std::less<>> variables;
  std::map<std::tuple<std::string, std::string, std::string>, EnvironmentFinding> findings;
  std::vector<int> all;
  for (const RankEnvironment& own : ranks) {
    all.push_back(own.rank);
    if (own.rank >= 0) {
      if (report.hosts.size() <= static_cast<std::size_t>(own.rank))
        report.hosts.resize(static_cast<std::size_t>(own.rank) + 1);
      report.hosts[static_cast<std::size_t>(own.rank)] = own.host;
    }
    put_rank(
        report.nccl, own.rank, [&](const auto& known) { return same_library(known, own.nccl); },
        [&] { return own.nccl; });
    for (const RankFile& file : own.files) {
      const std::string digest = fmt::format("{:016x}", file.digest);
      put_rank(
          report.files, own.rank, [&](const auto& known) { return known.path == file.path && known.digest == digest; },
          [&] { return Report::File{.path = file.path, .digest = digest}; });
    }
    for (const RankVariable& variable : own.variables) {
      auto& known = variables[variable.name];
      if (known.name.empty()) {
        const auto family = family_of(variable.name);
        known.name = variable.name;
        known.family = family ? to_string(*family) : "";
      }
      put_rank(
          known.values, own.rank,
          [&](const auto& value) {
            return value.value == variable.value && value.origin == variable.origin && value.read == variable.read;
          },
          [&] { return Report::Value{.value = variable.value, .origin = variable.origin, .read = variable.read}; });
    }
    for (const EnvironmentFinding& finding : own.findings) {
      auto& known = findings.try_emplace({finding.rule, finding.variable, finding.text}, finding).first->second;
      if (known.ranks.empty() || known.ranks.back() != own.rank) known.ranks.push_back(own.rank);
    }
  }
  for (auto& [name, variable] : variables) report.variables.push_back(std::move(variable));
  for (auto& [key, finding] : findings) report.findings.push_back(std::move(finding));
  Differences{report, std::move(all)}.find();
  std::stable_sort(report.findings.begin(), report.findings.end(),
                   [](const EnvironmentFinding& a, const EnvironmentFinding& b) { return a.error && !b.error; });
  return report;
}

}  // namespace ddp::diagnostics
