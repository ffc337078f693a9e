// What is known of a job that may hang, as text and as JSON.
#pragma once

#include <string>

#include "diagnostics/hang/hang_judge.hpp"

namespace ddp::diagnostics {

/// Who hung, as far as was to be seen from outside.
struct HangReport {
  std::string when;    ///< "no progress for 60 s", "before the ranks were ended"
  std::string text;    ///< lines, the verdict first
  std::string json{};  ///< the document of ddp-info status
};

/// The verdict, then ranks at the same place once, waits, stacks and notes. Each line ends with a newline.
std::string hang_text(const JobObservation& job, const HangVerdict& verdict);
/// One document, schema "ddp-info-status/1".
std::string hang_json(const JobObservation& job, const HangVerdict& verdict);

}  // namespace ddp::diagnostics
