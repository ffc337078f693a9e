// The table of EnvironmentReport::to_text().
#include <algorithm>
#include <array>
#include <map>

#include <fmt/format.h>

#include <ddp/diagnostics.hpp>
#include <ddp/error.hpp>

namespace ddp {
namespace {

constexpr std::size_t kMostHosts = 8;
constexpr std::size_t kMostValues = 4;    // of one variable; --json has all
constexpr std::size_t kWidestValue = 48;  // longer ones move what follows
constexpr std::array<std::string_view, 14> kFamilies{"launcher", "PyTorch",   "NCCL",   "CUDA", "Gloo",
                                                     "UCX",      "libfabric", "verbs",  "MPI",  "Slurm",
                                                     "PMIx",     "OpenMP",    "libddp", ""};

std::string counted(std::size_t number, std::string_view noun) {
  return fmt::format("{} {}{}", number, noun, number == 1 ? "" : "s");
}

std::string heading(const EnvironmentReport& report) {
  std::map<std::string, std::vector<int>> ranks_of;
  std::vector<std::string> order;
  for (std::size_t rank = 0; rank < report.hosts.size(); ++rank) {
    auto& ranks = ranks_of[report.hosts[rank]];
    if (ranks.empty()) order.push_back(report.hosts[rank]);
    ranks.push_back(static_cast<int>(rank));
  }
  std::string text = fmt::format("{} on {}: ", counted(report.hosts.size(), "rank"), counted(order.size(), "host"));
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i == kMostHosts) return text + fmt::format(", and {} more\n", order.size() - i);
    text += fmt::format("{}{}", i == 0 ? "" : ", ", order[i].empty() ? "no answer" : order[i]);
    if (report.hosts.size() > 1) text += fmt::format(" ({})", format_ranks(ranks_of[order[i]]));
  }
  return text + '\n';
}

std::string verdict(const EnvironmentReport& report) {
  const auto is_error = [](const EnvironmentFinding& finding) { return finding.error; };
  const auto errors = static_cast<std::size_t>(std::count_if(report.findings.begin(), report.findings.end(), is_error));
  const std::size_t warnings = report.findings.size() - errors;
  if (report.findings.empty()) return "nothing wrong found\n";
  std::string text = errors > 0 ? counted(errors, "error") : "";
  if (warnings > 0) text += fmt::format("{}{}", errors > 0 ? ", " : "", counted(warnings, "warning"));
  text += ":\n";
  for (const EnvironmentFinding& finding : report.findings) {
    text += fmt::format("  {} {}: {}", finding.error ? "error" : "warning", finding.rule, finding.text);
    if (finding.ranks.size() < report.hosts.size()) text += fmt::format(" ({})", format_ranks(finding.ranks));
    if (!finding.remedy.empty()) text += fmt::format("; {}", finding.remedy);
    text += '\n';
  }
  return text;
}

/// Nothing where all ranks are meant.
std::string on_ranks(const std::vector<int>& ranks, const EnvironmentReport& report) {
  return ranks.size() == report.hosts.size() ? "" : format_ranks(ranks) + ": ";
}

std::string libraries(const EnvironmentReport& report) {
  std::string text;
  for (const auto& library : report.nccl) {
    text += "NCCL: " + on_ranks(library.ranks, report);
    if (library.path.empty()) {
      text += library.problem + '\n';
      continue;
    }
    text +=
        fmt::format("{}{} ({})", library.version.empty() ? "" : library.version + ", ", library.path, library.found);
    text += library.names > 0
                ? fmt::format(", reads {}\n", counted(static_cast<std::size_t>(library.names), "variable"))
                : fmt::format(": {}\n", library.problem);
  }
  for (const auto& file : report.files) {
    text += fmt::format("{} {}(digest {})\n", file.path, on_ranks(file.ranks, report), file.digest);
  }
  return text;
}

void add_line(std::string& text, std::string_view name, std::size_t width, const std::string& value,
              const std::string& note) {
  text += fmt::format("  {:<{}}  {:<{}}  {}\n", name, width, value,
                      std::min(kWidestValue, std::max<std::size_t>(value.size(), 16)), note);
}

void add_variable(std::string& text, const EnvironmentReport::Variable& variable, std::size_t width,
                  const EnvironmentReport& report) {
  if (variable.values.size() > kMostValues) {
    std::size_t set = 0;
    for (const auto& value : variable.values) set += value.ranks.size();
    add_line(text, variable.name, width, fmt::format("{}, {}, ...", variable.values[0].value, variable.values[1].value),
             fmt::format("{} on {}: {}", counted(variable.values.size(), "value"), counted(set, "rank"),
                         variable.values[0].origin));
    return;
  }
  std::string_view name = variable.name;
  for (const auto& value : variable.values) {
    const bool unread = value.read && !*value.read;
    add_line(text, name, width, value.value.empty() ? "(empty)" : value.value,
             on_ranks(value.ranks, report) + value.origin + (unread ? "; not read" : ""));
    name = "";
  }
}

}  // namespace

std::string EnvironmentReport::to_text() const {
  std::string text = heading(*this) + verdict(*this) + libraries(*this);
  for (const std::string_view family : kFamilies) {
    std::string lines;
    std::size_t width = 0;
    const auto of_family = [&](const Variable& variable) { return variable.family == family; };
    for (const Variable& variable : variables) {
      if (of_family(variable)) width = std::max(width, variable.name.size());
    }
    for (const Variable& variable : variables) {
      if (of_family(variable)) add_variable(lines, variable, std::min(width, kWidestValue), *this);
    }
    if (!lines.empty()) text += fmt::format("\n{}\n{}", family.empty() ? "others" : family, lines);
  }
  return text;
}

}  // namespace ddp
