// `ddp-info doctor`: gathers the facts, applies the rules, prints the findings. From one node of an allocation, srun
// runs it on all.
#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/env_table.hpp"
#include "cli/option_table.hpp"
#include "doctor/rule.hpp"

namespace ddp::tools::doctor {

/// Nodes of an allocation that this process could examine; 1: it is in none, or a task of a step.
int allocated_nodes(const base::Environment& environment);

/// srun ends with 1 for failures of its own, too; so the doctor's statuses are told from here on.
inline constexpr int kFirstStatusUnderSrun = 10;

/// Runs the doctor with @p arguments on all nodes and waits for it. @param limit for the ranks to meet
/// @return the exit status. Throws Error(unavailable) where srun cannot run it, within a minute more than @p limit.
int examine_allocation(int nodes, std::span<const std::string> arguments, std::chrono::milliseconds limit);

struct DoctorOptions {
  std::string help{};  ///< what --help prints, if it is given
  bool json = false;
  bool no_job = false;
  bool under_srun = false;        ///< by a doctor that srun runs for all nodes: tell its statuses from srun's own
  bool rules = false;             ///< print all rules, in Markdown
  const Rule* explain = nullptr;  ///< print what is known of it
  std::vector<const Rule*> only;  ///< empty: all
  std::vector<const Rule*> skipped;
  std::optional<Severity> fail_on = Severity::warning;  ///< the least that makes the exit status not 0; nothing: never

  bool wants(const Rule& rule) const;
};

cli::OptionTable doctor_table(DoctorOptions& options);

/// @param arguments those after the word "doctor". Throws cli::UsageError.
DoctorOptions parse_doctor_options(std::span<const std::string> arguments);

inline constexpr int kCouldNotExamine = 3;

/// @return the exit status: 0, 1 warnings, 2 errors; 0 on ranks other than 0. Throws Error where the job cannot be
/// examined. In a Slurm allocation of several nodes srun runs it on each of them.
int run_doctor(const DoctorOptions& options, std::span<const std::string> arguments);

}  // namespace ddp::tools::doctor
