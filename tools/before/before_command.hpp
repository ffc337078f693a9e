// `ddp-info before`: what a launcher has done in each rank before its program starts. Not for people, so not in the
// help.
#pragma once

#include <span>
#include <string>

namespace ddp::tools::before {

/// The program must not start: the doctor has found errors.
inline constexpr int kMustNotStart = 42;  // no status of a failure

/// `[--dump WHERE] [--doctor] [--program NAME] [-- FILE ARGV0 ARGUMENT...]`. With a program it becomes that, unless it
/// must not start; --program only names it. The ranks meet in the store of torchrun's environment. What does not work
/// is one line on standard error, and the program starts without it.
/// @return 0, or kMustNotStart. Throws UsageError, and Error(system) where the program cannot be executed.
int run_before(std::span<const std::string> arguments);

}  // namespace ddp::tools::before
