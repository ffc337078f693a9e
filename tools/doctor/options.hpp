// The command line of `ddp-info doctor`, after it has been checked.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "doctor/rule.hpp"

namespace ddp::tools::doctor {

struct DoctorOptions {
  bool help = false;
  bool json = false;
  bool no_job = false;
  bool under_srun = false;        ///< by a doctor that srun runs for all nodes: tell its statuses from srun's own
  bool rules = false;             ///< print all rules as docs/rules.md has them
  const Rule* explain = nullptr;  ///< print what is known of it
  std::vector<const Rule*> only;  ///< empty: all
  std::vector<const Rule*> skipped;
  std::optional<Severity> fail_on = Severity::warning;  ///< the least that makes the exit status not 0; nothing: never

  bool wants(const Rule& rule) const;
};

/// What --help prints.
extern const char* const kDoctorHelp;

/// @param arguments those after the word "doctor". Throws UsageError.
DoctorOptions parse_doctor_options(std::span<const std::string> arguments);

}  // namespace ddp::tools::doctor
