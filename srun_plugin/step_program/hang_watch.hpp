// Whether the ranks of a node get on, as its witness sees it: says in the step's news when they do not, and what they
// do once srun's side asks.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>

#include <ddp/deadline.hpp>

#include "base/unique_fd.hpp"
#include "diagnostics/hang/observe.hpp"
#include "diagnostics/hang/standstill_watch.hpp"
#include "step_program/step_news.hpp"
#include "task_side/step_store.hpp"

namespace ddp::srun_plugin {

struct HangWatchOptions {
  std::string address;  ///< of the store beside srun
  std::uint16_t port = 0;
  std::string node;
  std::size_t local_tasks = 0;
  std::uint32_t world_size = 0;
  std::chrono::milliseconds after{0};  ///< for how long no rank must get on
};

/// Begins with the last of the node's tasks. Throws as StepStore from every member. Not thread-safe.
class HangWatch {
 public:
  explicit HangWatch(HangWatchOptions options);

  void started(int rank, pid_t pid);
  void ended(int rank);

  /// Readable when advance() has something to do, which it has at due(), too.
  int fd() const { return events_.get(); }
  std::optional<Deadline> due() const { return observer_ ? std::optional{observer_->deadline()} : std::nullopt; }
  void advance();

 private:
  void say(NewsKind kind, Bytes content = {}, std::uint32_t inquiry = 0);
  void await_inquiry();
  void observe();
  void watch(int fd);

  HangWatchOptions options_;
  StepStore store_;
  base::UniqueFd events_;       ///< epoll(7)
  std::map<int, pid_t> ranks_;  ///< that run
  std::size_t started_ = 0;
  std::unique_ptr<diagnostics::StandstillWatch> standstill_;
  std::optional<StepStore> inquiry_;  ///< waits for the next, once there may be one
  std::uint32_t next_inquiry_ = 1;
  std::uint32_t observed_for_ = 0;
  std::unique_ptr<diagnostics::RankObserver> observer_;
};

}  // namespace ddp::srun_plugin
