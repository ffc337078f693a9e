// What libddp writes to standard error: log lines by level, each in one write.
#pragma once

#include <chrono>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace ddp::base {

// libddp's log: lines on standard error, prefixed with the rank once it is known. Level from DDP_LOG_LEVEL.

enum class LogLevel { debug, info, warning, error };

/// Writes one line. Thread-safe. Never throws; a line that cannot be written is dropped.
void log_line(LogLevel level, std::string_view text) noexcept;

/// Whether a line of @p level would be written.
bool log_enabled(LogLevel level) noexcept;

/// Puts "rank N" in front of the lines that follow.
void set_log_rank(int rank);

template <class... Args>
void log(LogLevel level, fmt::format_string<Args...> format, Args&&... args) {
  if (log_enabled(level)) log_line(level, fmt::format(format, std::forward<Args>(args)...));
}

// Lines on standard error that must not block or end the program when they cannot be written; and texts on standard
// output, which another process may have made non-blocking.

/// What a reader that has stopped to read costs every line.
inline constexpr std::chrono::milliseconds kLinePatience{250};
/// For texts that were requested, and may be read page by page.
inline constexpr std::chrono::hours kPagePatience{1};

/// Writes @p line, which may have several lines in it, and a newline: in one call where a pipe or terminal is sure to
/// take that at once, so that lines of several processes do not tear each other. Waits for a slow reader, and gives up
/// the rest once nothing has been taken for @p patience. Does nothing where standard error is closed.
/// @param stop_fd as soon as it is readable, nothing is waited for any more; -1: none.
void write_stderr_line(std::string_view line, std::chrono::milliseconds patience = kLinePatience,
                       int stop_fd = -1) noexcept;

/// The same on any descriptor, whether it blocks or not. @return whether all was written
bool write_line(int fd, std::string_view line, std::chrono::milliseconds patience, int stop_fd = -1) noexcept;

/// The same for bytes that are passed on as they are, without a newline.
bool write_bytes(int fd, std::string_view bytes, std::chrono::milliseconds patience, int stop_fd = -1) noexcept;

/// The same for a text that ends in a newline itself.
bool write_text(int fd, std::string_view text, std::chrono::milliseconds patience, int stop_fd = -1) noexcept;

}  // namespace ddp::base
