// One line on the terminal while a job starts, and one when it is over. Silent unless standard error is a terminal.
#pragma once

#include <chrono>
#include <string>

namespace ddp::launcher {

class StatusLine {
 public:
  explicit StatusLine(bool terminal) : terminal_(terminal) {}
  StatusLine(const StatusLine&) = delete;
  StatusLine& operator=(const StatusLine&) = delete;
  ~StatusLine() { clear(); }

  bool terminal() const { return terminal_; }
  /// Replaces the line. Never throws and never blocks for long: what the terminal does not take is left out.
  void show(const std::string& text) noexcept;
  /// Before anything else is written.
  void clear() noexcept;

 private:
  bool terminal_;
  bool shown_ = false;
};

/// "64 ranks on 4 nodes succeeded after 12.3 s (running after 0.21 s)"
std::string summary_line(int world_size, int num_nodes, std::chrono::milliseconds until_started,
                         std::chrono::milliseconds total);

}  // namespace ddp::launcher
