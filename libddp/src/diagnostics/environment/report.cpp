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

// The document of EnvironmentReport::to_json(), which `ddp-info env --diff` reads.

namespace {

std::string json_string(std::string_view text) {
  std::string result = "\"";
  for (const char letter : text) {
    const auto byte = static_cast<unsigned char>(letter);
    if (letter == '"' || letter == '\\') {
      result += '\\';
      result += letter;
    } else if (byte < 0x20U) {
      result += fmt::format("\\u{:04x}", byte);
    } else {
      result += letter;
    }
  }
  return result + '"';
}

/// "0-7,9": short for any number of ranks.
std::string ranges(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t first = 0; first < ranks.size();) {
    std::size_t last = first;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += fmt::format("{}{}", text.empty() ? "" : ",", ranks[first]);
    if (last > first) text += fmt::format("-{}", ranks[last]);
    first = last + 1;
  }
  return json_string(text);
}

/// The elements, one a line, as @p write makes them.
template <typename Elements, typename Write>
std::string list(const Elements& elements, Write write) {
  std::string text = "[";
  for (std::size_t i = 0; i < elements.size(); ++i) text += (i == 0 ? "\n  " : ",\n  ") + write(elements[i]);
  return text + "]";
}

std::string read_text(const std::optional<bool>& read) { return read ? (*read ? "true" : "false") : "null"; }

}  // namespace

std::string EnvironmentReport::to_json() const {
  std::string text = fmt::format("{{\"schema\": \"ddp-info-env/1\",\n\"ranks\": {},\n\"hosts\": ", hosts.size());
  text += list(hosts, json_string);
  text += ",\n\"nccl\": " + list(nccl, [](const Library& library) {
            return fmt::format(R"({{"path": {}, "found": {}, "version": {}, "names": {}, "problem": {}, "ranks": {}}})",
                               json_string(library.path), json_string(library.found), json_string(library.version),
                               library.names, json_string(library.problem), ranges(library.ranks));
          });
  text += ",\n\"files\": " + list(files, [](const File& file) {
            return fmt::format(R"({{"path": {}, "digest": {}, "ranks": {}}})", json_string(file.path),
                               json_string(file.digest), ranges(file.ranks));
          });
  text += ",\n\"findings\": " + list(findings, [](const EnvironmentFinding& finding) {
            return fmt::format(
                R"({{"rule": {}, "severity": {}, "variable": {}, "text": {}, "remedy": {}, "ranks": {}}})",
                json_string(finding.rule), finding.error ? "\"error\"" : "\"warning\"", json_string(finding.variable),
                json_string(finding.text), json_string(finding.remedy), ranges(finding.ranks));
          });
  text += ",\n\"variables\": " + list(variables, [](const Variable& variable) {
            std::string values;
            for (const Value& value : variable.values) {
              values += fmt::format(R"({}{{"value": {}, "origin": {}, "read": {}, "ranks": {}}})",
                                    values.empty() ? "" : ", ", json_string(value.value), json_string(value.origin),
                                    read_text(value.read), ranges(value.ranks));
            }
            return fmt::format(R"({{"name": {}, "family": {}, "values": [{}]}})", json_string(variable.name),
                               json_string(variable.family), values);
          });
  return text + "}\n";
}

}  // namespace ddp
