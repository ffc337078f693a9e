#include "env/dump_file.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <optional>
#include <set>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <ddp/error.hpp>

#include "base/errors.hpp"
#include "base/files.hpp"
#include "diagnostics/environment/redaction.hpp"

namespace ddp::tools::env {
namespace {

using nlohmann::json;

constexpr std::string_view kSchema = "ddp-info-env/1";
constexpr int kMostRanks = 1'000'000;  // bounds what a wrong file makes of memory

/// Thrown within this file; becomes the cause of an Error.
struct Malformed {
  std::string cause;
};

const json& member(const json& object, const char* name) {
  const auto found = object.is_object() ? object.find(name) : object.end();
  if (!object.is_object() || found == object.end()) throw Malformed{fmt::format("'{}' is missing", name)};
  return *found;
}

const json& list(const json& object, const char* name) {
  const json& value = member(object, name);
  if (!value.is_array()) throw Malformed{fmt::format("'{}' is not a list", name)};
  return value;
}

/// As it may be printed, whatever the file has.
std::string text_of(const json& value, const char* name) {
  if (!value.is_string()) throw Malformed{fmt::format("'{}' is not a text", name)};
  return diagnostics::shown_value("", value.get_ref<const std::string&>());
}

std::string text(const json& object, const char* name) { return text_of(member(object, name), name); }

int number(const json& object, const char* name) {
  const json& value = member(object, name);
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > static_cast<std::uint64_t>(kMostRanks)) {
    throw Malformed{fmt::format("'{}' is not a number up to {}", name, kMostRanks)};
  }
  return value.get<int>();
}

/// "0-7,9"
std::vector<int> ranks(const json& object) {
  const json& listed = member(object, "ranks");
  if (!listed.is_string()) throw Malformed{"'ranks' is not a text"};
  const auto& ranges = listed.get_ref<const std::string&>();
  std::vector<int> found;
  const char* at = ranges.data();
  const char* const end = at + ranges.size();
  const auto read = [&] {
    int value = -1;
    const auto [next, status] = std::from_chars(at, end, value);
    const bool ascending = found.empty() || value > found.back();
    if (status != std::errc{} || value < 0 || value >= kMostRanks || !ascending) {
      throw Malformed{fmt::format("'{}' is not a list of ranks", text(object, "ranks"))};
    }
    at = next;
    return value;
  };
  while (at != end) {
    found.push_back(read());
    if (at != end && *at == '-') {
      ++at;
      for (int last = read(), next = found.back() + 1; next <= last; ++next) found.push_back(next);
    }
    if (at == end) break;
    if (*at != ',' || ++at == end) throw Malformed{fmt::format("'{}' is not a list of ranks", ranges)};
  }
  return found;
}

EnvironmentReport read_document(const json& document) {
  if (text(document, "schema") != kSchema) throw Malformed{fmt::format("its schema is not {}", kSchema)};
  EnvironmentReport report;
  for (const json& host : list(document, "hosts")) report.hosts.push_back(text_of(host, "hosts"));
  for (const json& each : list(document, "nccl")) {
    report.nccl.push_back({.path = text(each, "path"),
                           .found = text(each, "found"),
                           .version = text(each, "version"),
                           .names = number(each, "names"),
                           .problem = text(each, "problem"),
                           .ranks = ranks(each)});
  }
  for (const json& each : list(document, "files")) {
    report.files.push_back({.path = text(each, "path"), .digest = text(each, "digest"), .ranks = ranks(each)});
  }
  for (const json& each : list(document, "findings")) {
    report.findings.push_back({.rule = text(each, "rule"),
                               .error = text(each, "severity") == "error",
                               .variable = text(each, "variable"),
                               .text = text(each, "text"),
                               .remedy = text(each, "remedy"),
                               .ranks = ranks(each)});
  }
  for (const json& each : list(document, "variables")) {
    EnvironmentReport::Variable variable{.name = text(each, "name"), .family = text(each, "family")};
    for (const json& value : list(each, "values")) {
      const json& read = member(value, "read");
      if (!read.is_boolean() && !read.is_null()) throw Malformed{"'read' is neither true, false nor null"};
      variable.values.push_back({.value = text(value, "value"),
                                 .origin = text(value, "origin"),
                                 .read = read.is_null() ? std::nullopt : std::optional{read.get<bool>()},
                                 .ranks = ranks(value)});
    }
    report.variables.push_back(std::move(variable));
  }
  return report;
}

}  // namespace

EnvironmentReport parse_dump(std::string_view text, const std::string& name) {
  std::string cause = "it is not a JSON document";
  try {
    const json document = json::parse(text, nullptr, false);
    if (!document.is_discarded()) return read_document(document);
  } catch (const Malformed& malformed) {
    cause = malformed.cause;
  }
  throw Error{{.code = ErrorCode::protocol,
               .attempted = fmt::format("reading '{}'", name),
               .cause = std::move(cause),
               .hint = "give a file of 'ddp-info env --json' or DDP_DUMP_ENV"}};
}

EnvironmentReport read_dump(const std::string& path) {
  const auto text = base::read_file(path);
  if (!text) throw base::system_error(fmt::format("reading '{}'", path), errno);
  return parse_dump(*text, path);
}

namespace {

// Different in every job, and of no other interest. Open MPI's own are of its mpirun, or of Slurm's PMIx, which makes
// one of the step's number.
constexpr std::array<std::string_view, 5> kOfTheJob{"SLURM", "PMIX_", "PMI_", "DDPRUN_", "OMPI_MCA_orte_"};

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
