// Files that others read while they are written: replaced as a whole, so that readers never see half of one.
#pragma once

#include <chrono>
#include <string>

namespace ddp::launcher {

/// Checks that replace_file() is likely to succeed and changes nothing. Throws Error(system). @p attempted: as in
/// Error.
void check_replaceable(const std::string& attempted, const std::string& path);

/// Writes @p text beside @p path, then renames it. Links are followed; the mode of a file that is replaced is kept.
/// What is no regular file (device, pipe), and a standard stream by its name in /dev or /proc, is written to directly,
/// for at most @p write_limit where nothing reads it; SIGPIPE must be ignored. Throws Error(system); the old file is
/// unchanged then.
void replace_file(const std::string& attempted, const std::string& path, const std::string& text,
                  std::chrono::milliseconds write_limit = std::chrono::seconds(5));

}  // namespace ddp::launcher
