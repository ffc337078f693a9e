#include <ddp/rank_log.hpp>

#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/log.hpp"

namespace ddp {

RankLog::RankLog(const ProcessGroup& group, RankLogOptions options)
    : options_(std::move(options)), writes_(options_.rank < 0 || options_.rank == group.rank()) {}

bool RankLog::due(Clock::time_point now) const {
  const std::lock_guard lock(mutex_);
  return writes_ && is_due(now);
}

bool RankLog::write(std::string_view line, Clock::time_point now) {
  if (!writes_) return false;
  const std::lock_guard lock(mutex_);
  if (!is_due(now)) {
    ++left_out_;
    return false;
  }
  put(line, now);
  return true;
}

bool RankLog::write_always(std::string_view line, Clock::time_point now) {
  if (!writes_) return false;
  const std::lock_guard lock(mutex_);
  put(line, now);
  return true;
}

void RankLog::put(std::string_view line, Clock::time_point now) {
  std::string text{line};
  if (left_out_ > 0) text += fmt::format(" ({} lines left out before)", left_out_);
  left_out_ = 0;
  next_ = now + options_.interval;
  if (options_.sink) {
    options_.sink(text);
  } else {
    base::write_stderr_line(text);
  }
}

}  // namespace ddp
