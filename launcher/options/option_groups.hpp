// The groups of options: each has a file that fills the table, and settles what its options mean together.
#pragma once

#include <optional>
#include <string>

#include "cli/option_table.hpp"
#include "options/failure_options.hpp"
#include "options/launch_options.hpp"

namespace ddp::launcher {

using cli::OptionTable;
using cli::ValueKind;

/// A value, and the option or variable that gave it; empty: none did.
struct SourcedText {
  std::string source;
  std::string text;
};

/// The options' values, before they are checked together.
struct OptionDraft {
  LaunchOptions options;
  bool module = false;
  bool no_python = false;
  bool run_path = false;
  bool use_env = false;
  std::optional<SignalList> ending;
  std::optional<SignalList> forwarded;
  std::optional<BindPolicy> bind;
  std::string numa_binding;
  std::optional<topology::GpuVisibility> gpus;
  std::string host_file;
  int total_ranks = 0;  ///< -n; 0: not given
  SourcedText metrics_port;
  SourcedText metrics_address;

  void notice(std::string text) { options.notices.push_back(std::move(text)); }
};

void add_job_options(OptionTable& table, OptionDraft& draft);
void add_total_ranks(OptionTable& table, OptionDraft& draft);
void add_host_options(OptionTable& table, OptionDraft& draft);
void add_program_options(OptionTable& table, OptionDraft& draft);
void add_failure_options(OptionTable& table, OptionDraft& draft);
void add_output_options(OptionTable& table, OptionDraft& draft);
void add_placement_options(OptionTable& table, OptionDraft& draft);
void add_rendezvous_options(OptionTable& table, OptionDraft& draft);

/// Called in this order once all values have been read. Throw ExitError(kExitUsage) for contradictory options.
void settle_job_options(const OptionTable& table, OptionDraft& draft);
void settle_host_options(const OptionTable& table, OptionDraft& draft, const base::Environment& environment);
void settle_total_ranks(const OptionTable& table, OptionDraft& draft, const base::Environment& environment);
void settle_rendezvous_options(const OptionTable& table, OptionDraft& draft);
void settle_program_options(const OptionTable& table, OptionDraft& draft);
void settle_failure_options(const OptionTable& table, OptionDraft& draft, const base::Environment& environment);
void settle_output_options(const OptionTable& table, OptionDraft& draft, const base::Environment& environment);
void settle_placement_options(const OptionTable& table, OptionDraft& draft, const base::Environment& environment);

}  // namespace ddp::launcher
