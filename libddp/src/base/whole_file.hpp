// Files that are there whole or not at all: an incomplete write is an error, whatever the file system, and others read
// the old one or the new one.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "base/file_place.hpp"

namespace ddp::base {

/// 0, or errno of the failed write(2).
int write_all(int fd, std::string_view text);

struct WholeFile {
  std::string path;
  std::string attempted{};  ///< as in Error; empty: "writing '<path>'"
  /// For this user only, as what has an environment's values; else 0666 less the umask, or the mode of this user's file
  /// that is replaced.
  bool is_private = false;
  LastLink last = LastLink::followed;
  std::chrono::milliseconds limit{5'000};  ///< of what nothing reads
};

/// Replaces the file atomically: writes a temporary one beside it and renames that. A symbolic link stays, and its
/// target is replaced, if find_place() follows it. What is no regular file (device, pipe), and a standard stream by its
/// name in /dev or /proc, is written to directly; a program that writes to pipes ignores SIGPIPE. Throws Error(system),
/// and Error(invalid_argument) as find_place() does; the old file is unchanged then.
void write_file(const WholeFile& file, std::string_view text);
inline void write_file(const std::string& path, std::string_view text) { write_file(WholeFile{.path = path}, text); }

/// Checks that write_file() is likely to succeed, and changes nothing. Throws what that throws.
void check_file(const WholeFile& file);

/// All that is in the file at @p path, which may be one of /proc or a FIFO. Nothing where it cannot be opened or read
/// (some of /proc open for who may not read them): errno says why.
std::optional<std::string> read_file(const std::string& path);

}  // namespace ddp::base
