// Results to standard output and files. An incomplete write is an error: a full disk or closed pipe must not look like
// success.
#pragma once

#include <string>
#include <string_view>

namespace ddp::tools {

/// Writes all of @p text to standard output. Throws Error(system). A closed pipe is an error only where SIGPIPE is
/// ignored, as in ddp-info's main().
void write_standard_output(std::string_view text);

/// Replaces the file at @p path atomically: writes a temporary file beside it and renames that. A symbolic link stays,
/// and its target is replaced. Existing non-regular files (/dev/null, a FIFO) are written directly. Throws
/// Error(system).
void write_file(const std::string& path, std::string_view text);

}  // namespace ddp::tools
