#include "store_server/refusals.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace ddp::store_server {

void Refusals::post(const std::string& line, Clock::time_point now) {
  if (at_once_ > 0) {
    --at_once_;
    next_ = now + pause_;
  } else if (now < next_) {
    ++left_out_;
    return;
  } else {
    pause_ = std::min<std::chrono::milliseconds>(2 * pause_, kLongestPause);
    next_ = now + pause_;
  }
  const std::size_t left_out = std::exchange(left_out_, 0);
  const std::lock_guard lock(mutex_);
  lines_.push_back(left_out == 0 ? line : fmt::format("{} (and {} more before)", line, left_out));
  posted_.ring();
}

std::vector<std::string> Refusals::take() {
  const std::lock_guard lock(mutex_);
  posted_.clear();
  return std::exchange(lines_, {});
}

}  // namespace ddp::store_server
