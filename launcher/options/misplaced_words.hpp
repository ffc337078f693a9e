// Words of the command line that were perhaps meant for ddprun, but stand where they belong to the program.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace ddp::launcher {

/// "stderr", "-" and files of data: no program has such a name, so that it is the value of the option before it.
bool is_surely_a_value(std::string_view word);

/// What to write for @p option, whose value follows '=' only, where @p word stands behind it.
std::string hint_for_separate_value(std::string_view option, std::string_view word);

/// A remark where an option of launchers stands behind the program, as in "train.py --nproc-per-node 2"; else empty.
/// Programs that are launchers themselves have such options.
/// @param given the options that ddprun itself got
std::string remark_on_program_options(std::span<const std::string> command, std::span<const std::string> given);

}  // namespace ddp::launcher
