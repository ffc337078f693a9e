// `ddp-info doctor`: gathers the facts, applies the rules, prints the findings.
#pragma once

#include "doctor/options.hpp"

namespace ddp::tools::doctor {

inline constexpr int kCouldNotExamine = 3;

/// @return the exit status: 0, 1 warnings, 2 errors; 0 on ranks other than 0. Throws Error where the job cannot be
/// examined. In a Slurm allocation of several nodes srun runs it on each of them.
int run_doctor(const DoctorOptions& options, std::span<const std::string> arguments);

}  // namespace ddp::tools::doctor
