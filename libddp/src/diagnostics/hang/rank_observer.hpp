// Looks at this node's ranks once, on a thread of its own: a file in /proc may block beside a process that hangs in the
// kernel, and the thread that obeys orders must not wait for it.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>

#include "diagnostics/hang/process_table.hpp"
#include "diagnostics/hang/rank_facts.hpp"

namespace ddp::diagnostics {

/// Not thread-safe. Destruction leaves a thread that hangs behind; it touches nothing of the object.
class RankObserver {
 public:
  /// Begins; it takes a second. Throws Error(system) when there can be no thread.
  RankObserver(std::vector<FoundRank> ranks, std::string host, Deadline deadline);

  /// Readable when take() has something.
  int fd() const;
  /// When it has something even so: that /proc did not answer.
  Deadline deadline() const { return deadline_; }
  std::optional<HostFacts> take();

 private:
  struct Shared;
  Deadline deadline_;
  std::string host_;
  std::shared_ptr<Shared> shared_;
};

}  // namespace ddp::diagnostics
