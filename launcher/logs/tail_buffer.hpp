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

  /// At most the limits' lines and bytes, with the last newline if any. A progress bar is shortened to its last state.
  /// A cut falls between lines, or between characters of a single line that is too long.
  std::string text() const;

 private:
  const int max_lines_;
  const std::size_t max_bytes_;
  mutable std::mutex mutex_;
  std::string kept_;  ///< more than text() returns, which shortens progress bars
};

}  // namespace ddp::launcher
