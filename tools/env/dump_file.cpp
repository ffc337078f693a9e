#include "env/dump_file.hpp"

#include <cerrno>
#include <charconv>
#include <optional>

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
      throw Malformed{fmt::format("'{}' is no list of ranks", text(object, "ranks"))};
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
    if (*at != ',' || ++at == end) throw Malformed{fmt::format("'{}' is no list of ranks", ranges)};
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
  std::string cause = "it is no JSON document";
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

}  // namespace ddp::tools::env
