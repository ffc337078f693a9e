// Keeps the last lines that a rank wrote, for the report of its failure.
#pragma once

#include <cstddef>
#include <mutex>
#include <string>
#include <string_view>

namespace ddp::launcher {

/// Thread-safe.
class TailBuffer {
 public:
  TailBuffer(int max_lines, std::size_t max_bytes) : max_lines_(max_lines), max_bytes_(max_bytes) {}

  void append(std::string_view bytes);

  /// At most the limits' number of lines and bytes, with the last newline if there is one. Of a progress bar, what it
  /// showed last. Too long text starts at a line, or where one line alone is too long, at a character.
  std::string text() const;

 private:
  const int max_lines_;
  const std::size_t max_bytes_;
  mutable std::mutex mutex_;
  std::string kept_;  ///< more than is asked for: progress bars are taken out only in text()
};

}  // namespace ddp::launcher
