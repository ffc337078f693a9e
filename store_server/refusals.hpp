// Lines for the user about connections that the store refused or closed. A stranger must not fill the user's terminal:
// some lines at once, then fewer and fewer.
#pragma once

#include <chrono>
#include <cstddef>
#include <mutex>
#include <string>
#include <vector>

#include "base/unique_fd.hpp"

namespace ddp::store_server {

/// One thread posts, another takes.
class Refusals {
 public:
  using Clock = std::chrono::steady_clock;

  void post(const std::string& line, Clock::time_point now = Clock::now());

  int fd() const { return posted_.fd(); }  ///< readable while there are lines
  std::vector<std::string> take();

  static constexpr int kLinesAtOnce = 5;
  static constexpr std::chrono::seconds kFirstPause{1};  ///< each next one is twice as long,
  static constexpr std::chrono::minutes kLongestPause{10};

 private:
  base::WakeEvent posted_;
  std::mutex mutex_;
  std::vector<std::string> lines_;
  // of the thread that posts:
  int at_once_ = kLinesAtOnce;
  std::size_t left_out_ = 0;
  std::chrono::milliseconds pause_{kFirstPause};
  Clock::time_point next_{};
};

}  // namespace ddp::store_server
