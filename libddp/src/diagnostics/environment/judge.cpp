// Judges the variables of one process: unrecognized names, and values that are read as something else.
#include "diagnostics/environment/judge.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>

#include "base/env_table.hpp"
#include "diagnostics/environment/rank_environment.hpp"
#include "diagnostics/environment/redaction.hpp"

namespace ddp::diagnostics {
namespace {

EnvironmentFinding warning(std::string rule, std::string_view variable, std::string text, std::string remedy) {
  return {.rule = std::move(rule),
          .error = false,
          .variable = std::string(variable),
          .text = std::move(text),
          .remedy = std::move(remedy)};
}

std::string this_nccl(const NcclFile& nccl) {
  return nccl.version.empty() ? "this NCCL" : fmt::format("NCCL {}", nccl.version);
}

class Judge {
 public:
  explicit Judge(const NcclFile& nccl) : nccl_(nccl) {}

  void look_at(const std::string& name, const std::string& value) {
    if (!owner_of(name).empty()) return;
    const Variable* known = find_variable(name);
    const bool of_nccl = family_of(name) == Family::nccl && !name.starts_with("RCCL_");
    const std::string shown = shown_value("", name);
    const bool read = known == nullptr ? judge_unknown(name, shown, of_nccl) : judge_known(*known, of_nccl);
    if (!read || known == nullptr || is_secret(name)) return;
    const auto fault = check_value(*known, value, nccl_.version);
    if (!fault) return;
    add(warning(fault->out_of_range ? "env-range" : "env-misread", shown,
                fmt::format("{}={} {}", shown, shown_value(name, value), shown_value("", fault->text)), {}));
    findings.back().error = fault->out_of_range;
  }

  std::vector<EnvironmentFinding> findings;

 private:
  void add(EnvironmentFinding finding) { findings.push_back(std::move(finding)); }

  /// Whether the library lacks the replacement that the table recommends: "NCCL_CHECK_MODE=DEBUG_LOCAL" came with
  /// 2.29.7.
  bool lacks_replacement(const Variable& known) const {
    const std::string_view name = known.replacement.substr(0, known.replacement.find('='));
    return name.starts_with("NCCL_") && nccl_.scanned() && !nccl_.reads(name);
  }

  std::string use_instead(const Variable& known) const {
    return known.replacement.empty() || lacks_replacement(known) ? "unset it"
                                                                 : fmt::format("use {}", known.replacement);
  }

  /// @return whether its value matters
  bool judge_unknown(const std::string& name, const std::string& shown, bool of_nccl) {
    if (of_nccl && nccl_.reads(name)) return false;  // newer than the table
    const std::string meant = meant_name(name, nccl_.names);
    if (!meant.empty()) {
      add(warning("env-misspelt", shown, fmt::format("unrecognized variable {}; did you mean {}?", shown, meant),
                  fmt::format("rename it to {}", meant)));
    } else if (of_nccl) {
      add(warning("env-unknown", shown,
                  nccl_.scanned() ? fmt::format("{} is not read by {}", shown, this_nccl(nccl_))
                                  : fmt::format("{} is not a known variable of NCCL", shown),
                  "unset it, unless a plugin reads it"));
    }
    return false;
  }

  bool judge_known(const Variable& known, bool of_nccl) {
    const bool nccls_own = of_nccl && known.standing != Standing::others;
    const bool absent = nccls_own && nccl_.scanned() && !nccl_.reads(known.name);
    switch (known.standing) {
      case Standing::others: return true;
      case Standing::unread:
        add(warning("env-unread", known.name, fmt::format("no library reads {}", known.name), use_instead(known)));
        return false;
      case Standing::removed:
        if (nccls_own && nccl_.reads(known.name)) return true;
        add(warning("env-removed", known.name, fmt::format("{} was last read by NCCL {}", known.name, known.until),
                    use_instead(known)));
        return false;
      case Standing::deprecated:
        if (absent) break;
        if (lacks_replacement(known)) return true;  // this version has not deprecated it yet
        add(warning("env-deprecated", known.name, fmt::format("{} is deprecated", known.name), use_instead(known)));
        return true;
      case Standing::current:
      case Standing::undocumented: break;
    }
    if (!absent) return true;
    std::string when;
    if (!known.until.empty()) {
      when = fmt::format(": it was last read by {}", known.until);
    } else if (!known.since.empty()) {
      when = fmt::format(": it came with {}", known.since);
    }
    add(warning("env-unread", known.name, fmt::format("{} is not read by {}{}", known.name, this_nccl(nccl_), when),
                known.replacement.empty() ? "unset it, or use another NCCL" : use_instead(known)));
    return false;
  }

  const NcclFile& nccl_;
};

}  // namespace

std::vector<EnvironmentFinding> judge(const Variables& values, const NcclFile& nccl) {
  Judge judge{nccl};
  for (const auto& [name, value] : values) judge.look_at(name, value);
  for (const auto& [name, closest] : base::Environment{values}.unknown_ddp_variables()) {
    judge.findings.push_back(
        warning("env-misspelt", shown_value("", name),
                fmt::format("unrecognized variable {}; did you mean {}?", shown_value("", name), closest),
                fmt::format("rename it to {}", closest)));
  }
  return std::move(judge.findings);
}

namespace {

constexpr std::string_view kNcclCollectives = "Broadcast|Reduce|AllGather|ReduceScatter|AllReduce";  // its init.cc

bool same_letters(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

/// Whether @p matches accepts one of the words of @p list, separated by '|'.
template <typename Matches>
bool any_word(std::string_view list, Matches matches) {
  while (true) {
    const auto bar = list.find('|');
    if (matches(list.substr(0, bar))) return true;
    if (bar == std::string_view::npos) return false;
    list.remove_prefix(bar + 1);
  }
}

bool allowed(std::string_view values, std::string_view word, bool any_case) {
  return any_word(values, [&](std::string_view known) {
    if (known.ends_with('*')) {
      known.remove_suffix(1);
      return word.size() > known.size() && word.starts_with(known);
    }
    return any_case ? same_letters(known, word) : known == word;
  });
}

std::string listed(std::string_view values) {
  std::string text(values);
  for (auto bar = text.find('|'); bar != std::string::npos; bar = text.find('|', bar + 2)) text.replace(bar, 1, ", ");
  return text;
}

struct Parsed {
  long long number = 0;
  bool overflow = false;
  std::size_t length = 0;  ///< characters that belong to the number
};

/// Reads numbers as NCCL does (param.cc): strtoll of base 0, of which it checks only errno.
Parsed parse(const std::string& value) {
  errno = 0;
  char* end = nullptr;
  const long long number = std::strtoll(value.c_str(), &end, 0);
  return {.number = number, .overflow = errno == ERANGE, .length = static_cast<std::size_t>(end - value.c_str())};
}

std::optional<long long> bound(std::string_view text) {
  long long number = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.empty() || status != std::errc{}) return std::nullopt;
  return number;
}

std::optional<ValueFault> check_integer(const Variable& variable, const std::string& value) {
  const Parsed parsed = parse(value);
  const std::size_t last = value.find_last_not_of(" \t\r\n");
  if (parsed.overflow) return ValueFault{true, "is too large for a number: the default is used"};
  if (parsed.length == 0 || parsed.length < last + 1) {
    return ValueFault{false, fmt::format("is read as {}: a number is expected", parsed.number)};
  }
  const auto first = value.find_first_not_of(" \t+-");
  const bool octal = value.size() > first + 1 && value[first] == '0' &&
                     std::isdigit(static_cast<unsigned char>(value[first + 1])) != 0;
  if (octal && parsed.number != 0) {
    return ValueFault{false, fmt::format("is read as {}: a leading 0 makes it octal", parsed.number)};
  }
  const auto dots = variable.values.find("..");
  if (dots == std::string_view::npos) return std::nullopt;
  const auto lowest = bound(variable.values.substr(0, dots));
  const auto highest = bound(variable.values.substr(dots + 2));
  if ((lowest && parsed.number < *lowest) || (highest && parsed.number > *highest)) {
    return ValueFault{true, fmt::format("is not in {}", variable.values)};
  }
  return std::nullopt;
}

std::string unknown_word(std::string_view word, std::string_view known) {
  return fmt::format("has the unknown word '{}'; known: {}", word, listed(known));
}

/// The error in a list of words, if any.
std::optional<std::string> check_words(std::string_view known, std::string_view list) {
  if (list.starts_with('^')) list.remove_prefix(1);
  while (true) {
    const auto comma = list.find(',');
    const std::string_view word = list.substr(0, comma);
    if (!word.empty() && !allowed(known, word, true)) return unknown_word(word, known);
    if (comma == std::string_view::npos) return std::nullopt;
    list.remove_prefix(comma + 1);
  }
}

/// The error by the grammar of NCCL 2.24 (parseList in graph/tuning.cc), where each list but the first names a
/// collective: "Ring;allreduce:Tree,Ring".
std::optional<std::string> check_words_of_collectives(std::string_view known, std::string_view lists) {
  for (bool first = true; !lists.empty(); first = false) {
    const std::string_view entry = lists.substr(0, lists.find(';'));
    lists.remove_prefix(std::min(entry.size() + 1, lists.size()));
    const auto colon = entry.find(':');
    const std::string_view collective = entry.substr(0, colon);
    if (colon == std::string_view::npos) {
      if (!first && !entry.empty()) return fmt::format("names no collective before '{}'", entry);
    } else if (!allowed(kNcclCollectives, collective, true)) {
      return unknown_word(collective, kNcclCollectives);
    }
    auto fault = check_words(known, colon == std::string_view::npos ? entry : entry.substr(colon + 1));
    if (fault) return fault;
  }
  return std::nullopt;
}

std::optional<ValueFault> check_tuning(std::string_view known, std::string_view value, std::string_view nccl_version) {
  std::array<int, 2> version{};
  std::sscanf(std::string(nccl_version).c_str(), "%d.%d", &version[0], &version[1]);  // NOLINT(cert-err34-c)
  if (!nccl_version.empty() && version < std::array{2, 24}) {
    auto fault = check_words(known, value);
    if (fault) return ValueFault{false, std::move(*fault)};
    return std::nullopt;
  }
  auto fault = check_words_of_collectives(known, value);
  if (!fault) return std::nullopt;
  if (nccl_version.empty()) return ValueFault{false, std::move(*fault)};
  return ValueFault{true, fmt::format("{}: NCCL's init fails", *fault)};
}

}  // namespace

std::optional<ValueFault> check_value(const Variable& variable, std::string_view value, std::string_view nccl_version) {
  if (value.empty()) return std::nullopt;  // counts as unset
  switch (variable.rule) {
    case Rule::text: return std::nullopt;
    case Rule::integer: return check_integer(variable, std::string(value));
    case Rule::one_only: {
      const Parsed parsed = parse(std::string(value));
      if (value == "0" || (parsed.number == 1 && parsed.length == value.size())) return std::nullopt;
      return ValueFault{false, fmt::format("is read as {}: only 1 has an effect", parsed.number)};
    }
    case Rule::choice:
    case Rule::choice_any_case:
      if (allowed(variable.values, value, variable.rule == Rule::choice_any_case)) return std::nullopt;
      return ValueFault{false, fmt::format("is none of {}", listed(variable.values))};
    case Rule::words:
      if (auto fault = check_words(variable.values, value)) return ValueFault{false, std::move(*fault)};
      return std::nullopt;
    case Rule::tuning: return check_tuning(variable.values, value, nccl_version);
    case Rule::level:
      if (value.size() == 1 && value[0] >= '0' && value[0] <= '5') return std::nullopt;
      if (allowed(variable.values, value, false)) return std::nullopt;
      return ValueFault{false, fmt::format("is ignored: it is none of {}", listed(variable.values))};
    case Rule::file:
      if (!value.starts_with('~')) return std::nullopt;
      return ValueFault{false, "is taken literally: '~' is not expanded"};
  }
  return std::nullopt;
}

}  // namespace ddp::diagnostics
