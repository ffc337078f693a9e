// libddp's log: lines on standard error, prefixed with the rank once it is known. Level from DDP_LOG_LEVEL.
#pragma once

#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace ddp::base {

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

}  // namespace ddp::base
