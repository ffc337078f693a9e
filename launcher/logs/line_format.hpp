// How a worker's line looks on the console: behind a prefix, which may be coloured, or as JSON.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include "logs/line_assembler.hpp"
#include "logs/log_pump.hpp"

namespace ddp::launcher {

/// The forms of one stream's lines.
class LineFormat {
 public:
  LineFormat(const LogPumpOptions& options, const StreamRoute& route);

  bool json() const { return json_; }
  /// Whether progress bars are rewritten in place.
  bool in_place() const { return in_place_; }
  std::string prefix(std::chrono::system_clock::time_point time) const { return timestamp(time) + prefix_; }
  /// In the rank's colour, where the options ask for it.
  std::string console_prefix(std::chrono::system_clock::time_point time) const {
    return timestamp(time) + console_prefix_;
  }

  /// {"time":"2026-01-31T12:00:00.000000Z","host","rank","local_rank","stream","line"}, without a newline; times are
  /// UTC. Bytes that are no UTF-8 become U+FFFD. All but the last piece of a too long line have "partial":true.
  std::string json_line(const LinePiece& piece, std::chrono::system_clock::time_point time) const;

 private:
  /// "2026-01-31T12:00:00.000Z ", UTC, where the options ask for it.
  std::string timestamp(std::chrono::system_clock::time_point time) const;

  bool json_;
  bool in_place_;
  bool timestamps_;
  std::string prefix_;
  std::string console_prefix_;
  std::string json_facts_;  ///< what is the same in all lines: ,"host":...,"line":
};

}  // namespace ddp::launcher
