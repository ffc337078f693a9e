// A snapshot of the flight recorder as JSON. Its layout is that of PyTorch's flight recorder (version 2.10), so that
// PyTorch's analyser reads it; what that has no place for is under "ddp" keys, which `ddp-info flight` reads.
#pragma once

#include <string>
#include <string_view>

#include <ddp/error.hpp>

#include "base/env_table.hpp"
#include "collectives/flight/flight_recorder.hpp"

namespace ddp::collectives {

/// Whose dump it is. The name and the attempt are the same on all ranks of a job.
struct FlightJob {
  std::string name = "ddp";  ///< "job17.0" in a step of Slurm
  int attempt = 0;           ///< of a launcher that restarts

  static FlightJob of(const base::Environment& environment);
  /// "job17.0.rank3.json", "ddp.attempt1.rank0.json".
  std::string file_name(int rank) const;
};

/// @param reason why it is written: one sentence. @param failure null unless it is a failure.
std::string to_json(const FlightSnapshot& snapshot, const FlightJob& job, std::string_view reason,
                    const Error* failure = nullptr);

// ---- Where dumps of this process's flight recorder go: files in DDP_FLIGHT_DIR.

/// Joins the recorder of this process; from the first group on, it obeys DDP_FLIGHT_SIGNAL. Throws
/// Error(invalid_argument) for wrong variables, DDP_FLIGHT_SIGNAL without DDP_FLIGHT_DIR among them.
std::shared_ptr<FlightGroup> join_flight_recorder(FlightGroupFacts facts);

/// Writes this process's file in DDP_FLIGHT_DIR, if that is set; the file of before is replaced. Takes some
/// milliseconds, but at most two seconds: a file system that hangs must not keep an error from its program. Failures
/// are logged.
void write_flight_file(const std::string& reason, const Error* failure = nullptr) noexcept;

/// The same for the first failure of each group, and nothing later. To be called before the group's operations are
/// finished, so that the file shows them as they were.
void record_failure(FlightGroup& group, const Error& failure) noexcept;

// ---- DDP_FLIGHT_SIGNAL: a dump of the flight recorder of a running process, without a debugger and without its help.

/// Installs the handler and starts the thread that does its work, at the first call with DDP_FLIGHT_SIGNAL; they stay
/// until the process ends. Throws Error: invalid_argument for a wrong variable, or without DDP_FLIGHT_DIR; conflict if
/// the program handles the signal itself.
void obey_flight_signal(const base::Environment& environment);

}  // namespace ddp::collectives
