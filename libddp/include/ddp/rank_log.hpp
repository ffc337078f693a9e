// Lines of a training loop on one rank's standard error, no more often than a person can read them.
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
  int rank = 0;                           ///< of the group, that writes; -1: all
  std::chrono::milliseconds interval{0};  ///< between two lines; those that come earlier are left out
  /// Default: a line on standard error, which never ends the program.
  std::function<void(std::string_view line)> sink{};
};

/// Writes what one rank says, and says how many lines it has left out before. Thread-safe. No communication.
class RankLog {
 public:
  using Clock = Deadline::Clock;  ///< measures the interval

  /// Needs the rank in @p group only; the group may go before this object.
  explicit RankLog(const ProcessGroup& group, RankLogOptions options = {});

  /// Whether write() would: ask before a line that costs much.
  bool due(Clock::time_point now = Clock::now()) const;
  /// @return whether it was written. Exceptions of the sink are the caller's.
  bool write(std::string_view line, Clock::time_point now = Clock::now());
  /// The same for a line that must not be left out, on the rank that writes.
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
