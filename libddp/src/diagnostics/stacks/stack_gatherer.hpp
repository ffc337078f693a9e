// Reads the stacks of a node's ranks, several at a time, on threads of its own: a tool or /proc may hang, and the
// thread that obeys orders must not wait for it.
#pragma once

#include <sys/types.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>

#include "diagnostics/stacks/rank_stacks.hpp"
#include "diagnostics/stacks/stack_tools.hpp"

namespace ddp::diagnostics {

struct RankProcess {
  int rank;
  pid_t pid;
};

/// Not thread-safe. Destruction leaves threads that hang behind; they touch nothing of the object.
class StackGatherer {
 public:
  /// Begins. @p deadline limits all of it. Throws Error(system) when there can be no thread.
  StackGatherer(std::vector<RankProcess> ranks, StackTools tools, std::string host, Deadline deadline);
  StackGatherer(const StackGatherer&) = delete;
  StackGatherer& operator=(const StackGatherer&) = delete;
  ~StackGatherer();

  /// Readable when all stacks are there.
  int fd() const;
  /// When to take() what there is, even so.
  Deadline deadline() const { return deadline_; }
  /// All stacks so far, and a note on the ranks that have none; nothing before fd() is readable or the deadline has
  /// passed.
  std::optional<RankStacks> take();

 private:
  struct Shared;
  Deadline deadline_;
  std::shared_ptr<Shared> shared_;
};

}  // namespace ddp::diagnostics
