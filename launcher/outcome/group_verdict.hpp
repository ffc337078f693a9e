// Whom the ranks of a libddp process group hold responsible, as their last words say: the launcher sees only who ended
// first.
#pragma once

#include <string_view>
#include <vector>

#include "outcome/job_outcome.hpp"

namespace ddp::launcher {

/// The ranks that the last error of libddp's in @p text names as its cause, ascending: lost ones, those that did not
/// call an operation, and those that called another one than most. Empty: there is no such error, or it names nobody.
std::vector<int> blamed_ranks(std::string_view text);

/// Puts a failed rank that most of the others name before the one that ended first, and sets JobOutcome::verdict where
/// they name another rank than that.
void apply_group_verdict(JobOutcome& outcome);

}  // namespace ddp::launcher
