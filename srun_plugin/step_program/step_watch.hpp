// What srun's side says of a step's end: which rank failed first, who had ended with 0 before, and which nodes were
// never heard of.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>

#include "step_program/last_words.hpp"
#include "task_side/step_notes.hpp"
#include "task_side/step_store.hpp"

namespace ddp::srun_plugin {

/// "failed with exit code 1", "was ended by SIGKILL (9)". @param status as wait(2) gives it.
std::string describe_end(std::int32_t status);

/// One line about the first failure, and one about ranks that had ended with 0 before, if there are such.
/// @param early ends with 0, at whatever time. @param exception of the rank; empty: not known.
std::vector<std::string> describe_failure(const RankEnd& failure, const std::vector<RankEnd>& early, bool ends_step,
                                          const std::string& exception = {});

/// Nodes of the step that the store has not heard of. Throws as StepStore, as the next one.
std::vector<std::string> silent_nodes(StepStore& store, const StepNote& step);
/// Of all ranks that have ended with 0.
std::vector<RankEnd> ends_with_0(StepStore& store, const StepNote& step);

/// In the store's own process, as its client.
class StepWatch {
 public:
  /// @param failure_ends_step of srun's --kill-on-bad-exit. @param nodes_expected whether the step exists already.
  /// Throws as StepStore.
  StepWatch(std::uint16_t port, bool failure_ends_step, bool nodes_expected);

  /// Readable when a rank has failed.
  int fd() const { return failure_.fd(); }
  /// fd() has nothing more to say.
  bool failed() const { return failed_; }
  /// Call it when fd() is readable. A moment later, when other nodes' news are in, there are lines.
  void note_failure();
  /// When lines() should be called, at the latest when the step has ended; nothing before a failure.
  std::optional<Deadline> due() const { return due_; }
  /// What is to be said, once. Throws as StepStore.
  std::vector<std::string> lines();
  /// The rank that failed first, once lines() has named it.
  const std::optional<RankEnd>& failure() const { return named_; }

 private:
  StepStore failure_;  ///< waits for the first
  StepStore store_;
  bool failure_ends_step_;
  bool nodes_expected_;
  Deadline launch_;
  std::optional<Deadline> due_;
  bool failed_ = false;
  bool said_ = false;
  LastWords output_{STDERR_FILENO};  ///< srun's
  std::optional<RankEnd> named_;
};

}  // namespace ddp::srun_plugin
