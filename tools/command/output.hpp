// Where results go: standard output and files. Whatever cannot be written in full is an error, so that a full disk or a
// closed pipe is never taken for success.
#pragma once

#include <string>
#include <string_view>

namespace ddp::tools {

/// Writes all of @p text to standard output. Throws Error(system). A closed pipe is an error only where SIGPIPE is
/// ignored, as in ddp-info's main().
void write_standard_output(std::string_view text);

/// Replaces the file at @p path by one with this content, or leaves it as it was: writes a temporary file beside it and
/// renames that. A symbolic link stays one, and its target is replaced. What exists and is no regular file (/dev/null,
/// a FIFO) is written to directly. Throws Error(system).
void write_file(const std::string& path, std::string_view text);

}  // namespace ddp::tools
