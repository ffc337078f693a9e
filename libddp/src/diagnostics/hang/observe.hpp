// Looks at the ranks of this host several times, so that what moves differs from what stalls.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>

#include "diagnostics/hang/process_table.hpp"
#include "diagnostics/hang/rank_facts.hpp"

namespace ddp::diagnostics {

struct Looks {
  int count = 5;
  std::chrono::milliseconds pause{200};
};

/// @param proc "/proc". @param reads if given, whose files are being read; 0: nobody's
HostFacts observe_ranks(const std::string& proc, const std::string& host, const std::vector<FoundRank>& ranks,
                        const Looks& looks, std::atomic<pid_t>* reads = nullptr);

struct LocalObservation {
  HostFacts facts;
  bool whole = false;  ///< all ranks of the job are of this host
};
/// Finds and observes. Files in /proc can block beside a process that hangs in the kernel: then Error(timeout). Throws
/// what ProcessTable::ranks_of throws.
LocalObservation observe_host(const StatusTarget& target, const Looks& looks, Deadline deadline);

// Looks at this node's ranks once, on a thread of its own: a file in /proc may block beside a process that hangs in the
// kernel, and the thread that obeys orders must not wait for it.

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
