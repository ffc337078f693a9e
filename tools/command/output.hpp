// Results to standard output. An incomplete write is an error: a full disk or closed pipe must not look like success.
#pragma once

#include <string_view>

namespace ddp::tools {

/// Writes all of @p text to standard output. Throws Error(system). A closed pipe is an error only where SIGPIPE is
/// ignored, as in ddp-info's main().
void write_standard_output(std::string_view text);

}  // namespace ddp::tools
