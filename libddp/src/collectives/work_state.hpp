// State of a Work: set once by the group's threads, awaited by the caller.
#pragma once

#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>

#include <ddp/work.hpp>

namespace ddp::collectives {

/// Thread-safe.
class WorkState {
 public:
  WorkState(std::string description, Deadline deadline) : description_(std::move(description)), deadline_(deadline) {}

  void finish(std::optional<Error> error);
  void wait(std::optional<Deadline> limit);
  bool done() const;
  std::optional<Error> error() const;
  /// When it finished; nothing before that.
  std::optional<Deadline::Clock::time_point> finished_at() const;

 private:
  const std::string description_;
  const Deadline deadline_;
  mutable std::mutex mutex_;
  std::condition_variable finished_;
  bool done_ = false;
  Deadline::Clock::time_point finished_at_{};
  std::optional<Error> error_;
};

}  // namespace ddp::collectives
