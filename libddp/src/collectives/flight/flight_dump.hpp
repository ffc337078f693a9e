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

}  // namespace ddp::collectives
