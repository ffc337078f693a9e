// The lines of a failure report in torchrun's look: borders, and fields whose further lines are indented.
#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace ddp::launcher {

class ReportLines {
 public:
  /// One line.
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    lines_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  /// "  name      : text"; further lines of @p text are indented by two, as torchrun does.
  void field(std::string_view name, std::string_view text);
  /// The lines of @p text, each behind @p indent.
  void indented(std::string_view indent, std::string_view text);
  void border(char symbol) { lines_.emplace_back(1, symbol), borders_.push_back(lines_.size() - 1); }

  /// All lines. Borders are as wide as the longest of them, at most 60, as torchrun's.
  std::string text();

 private:
  std::vector<std::string> lines_;
  std::vector<std::size_t> borders_;
};

/// @p text without newlines at its end, and with its middle left out where it is longer than @p limit bytes: whole
/// lines of its beginning and, longer, of its end, which has the error.
std::string shortened(std::string_view text, std::size_t limit);

/// "1 rank", "2 ranks".
std::string plural(int count, std::string_view noun);

// Durations as reports give them: in seconds, with fractions.

inline double seconds(std::chrono::milliseconds duration) { return std::chrono::duration<double>(duration).count(); }

}  // namespace ddp::launcher
