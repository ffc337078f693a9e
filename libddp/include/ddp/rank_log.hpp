// Log lines of a training loop on one rank's standard error, no more often than a person can read them.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string_view>

#include <ddp/deadline.hpp>
#include <ddp/process_group.hpp>

namespace ddp {

/// What a RankLog writes, and where.
struct RankLogOptions {
  int rank = 0;                           ///< the rank in the group that writes; -1: all
  std::chrono::milliseconds interval{0};  ///< between two lines; earlier ones are dropped
  /// Default: writes a line to standard error; a failure there never ends the program.
  std::function<void(std::string_view line)> sink{};
};

/// Writes one rank's lines, each with the number of lines dropped before it. Thread-safe. No communication.
class RankLog {
 public:
  using Clock = Deadline::Clock;  ///< measures the interval

  /// Reads only this rank's number from @p group; the group may be gone before this object.
  explicit RankLog(const ProcessGroup& group, RankLogOptions options = {});

  /// Whether write() would write now: ask before you make an expensive line.
  bool due(Clock::time_point now = Clock::now()) const;
  /// @return whether the line was written. The sink's exceptions reach the caller.
  bool write(std::string_view line, Clock::time_point now = Clock::now());
  /// The same for a line that must not be dropped, on the rank that writes.
  bool write_always(std::string_view line, Clock::time_point now = Clock::now());

 private:
  bool is_due(Clock::time_point now) const { return now >= next_; }
  void put(std::string_view line, Clock::time_point now);

  const RankLogOptions options_;
  const bool writes_;
  mutable std::mutex mutex_;
  Clock::time_point next_ = Clock::time_point::min();
  std::uint64_t left_out_ = 0;
};

}  // namespace ddp
