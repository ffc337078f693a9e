// Why one rank gets what it gets.
#pragma once

#include <string>

#include "topo/report_model.hpp"

namespace ddp::tools {

/// Every decision with the alternatives that it beat, every setting with its reason, the interface and, in a job, the
/// binding. Plain ASCII. Throws Error(invalid_argument) if there is no such rank.
std::string format_explanation(const Report& report, int rank);

}  // namespace ddp::tools
