// What is wrong with the variables of one process: unrecognized names, and values that are read as something else.
#include <algorithm>

#include <fmt/format.h>

#include "base/env_table.hpp"
#include "diagnostics/environment/rank_environment.hpp"
#include "diagnostics/environment/secret_name.hpp"
#include "diagnostics/environment/shown_value.hpp"
#include "diagnostics/environment/value_check.hpp"
#include "diagnostics/environment/variable_table.hpp"

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

  /// Whether the library lacks what the table recommends: "NCCL_CHECK_MODE=DEBUG_LOCAL" came only with 2.29.7.
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
        if (lacks_replacement(known)) return true;  // it is not deprecated in this one yet
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

}  // namespace ddp::diagnostics
