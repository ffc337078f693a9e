// Informs a user who waits for the end of a job whom ddprun waits for, and what the next signal does. Nothing for ranks
// that end at once.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>

#include "outcome/job_outcome.hpp"

namespace ddp::launcher {

class EndNotice {
 public:
  using Time = Deadline::Clock::time_point;

  /// Ranks have been told to end, and are killed at @p limit. @param cause "SIGINT", "--timeout".
  /// @param signal the one to ddprun; 0: none
  void begin(std::string cause, int signal, Deadline limit, Time now);
  void stop() { next_.reset(); }

  std::optional<Deadline> next_deadline() const { return next_; }
  /// A line, when it is time for it. @param left ranks that have not ended
  std::optional<std::string> take(Time now, const std::vector<RankName>& left);

 private:
  std::string cause_;
  int signal_ = 0;
  std::optional<Deadline> limit_;
  std::optional<Deadline> next_;
  bool told_ = false;
};

}  // namespace ddp::launcher
