// What is known of a job that may hang, as text and as JSON.
#pragma once

#include <string>

#include "diagnostics/hang/hang_judge.hpp"

namespace ddp::diagnostics {

/// The verdict, then ranks at the same place once, waits, stacks and notes. Each line ends with a newline.
std::string hang_text(const JobObservation& job, const HangVerdict& verdict);
/// One document, schema "ddp-info-status/1".
std::string hang_json(const JobObservation& job, const HangVerdict& verdict);

}  // namespace ddp::diagnostics
