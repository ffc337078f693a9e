// Files that are written and read whole: an incomplete write is an error, whatever the file system.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ddp::base {

/// 0, or errno of the failed write(2).
int write_all(int fd, std::string_view text);

/// Replaces the file at @p path atomically: writes a temporary file beside it and renames that. A symbolic link stays,
/// and its target is replaced. Existing non-regular files (/dev/null, a FIFO) are written directly. Throws
/// Error(system).
void write_file(const std::string& path, std::string_view text);

/// All that is in the file at @p path, which may be one of /proc or a FIFO. Nothing where it cannot be opened or read
/// (some of /proc open for who may not read them): errno says why.
std::optional<std::string> read_file(const std::string& path);

}  // namespace ddp::base
