// Gathers what failed ranks left behind on a thread of its own: their files may lie on a file system that does not
// answer, and the thread that obeys orders must not wait for it.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>

#include "control/messages.hpp"

namespace ddp::launcher {

/// Not thread-safe. Destruction leaves a thread that hangs behind; it touches nothing of the object.
class TraceGatherer {
 public:
  /// Adds what the given traces have and the gathered ones lack; thread-safe.
  using Add = std::function<void(RankTraces)>;
  /// Runs on the thread, for one rank after the other; adds piece by piece, what matters most first.
  using Gather = std::function<void(int local_rank, const Add& add)>;

  struct Gathered {
    control::RankEnded end;
    bool late;            ///< there was no time for all
    std::string failure;  ///< why nothing was read: no thread could be made; else empty
  };

  /// @param patience for each rank, from gather() on; less than the coordinator's for killed ranks
  /// (SupervisionLimits), which would else take those that have ended for unkillable
  explicit TraceGatherer(Gather gather, std::chrono::milliseconds patience = std::chrono::milliseconds(1'500));
  TraceGatherer& operator=(TraceGatherer&&) = delete;
  ~TraceGatherer();

  /// Of a rank that failed. Where there can be no thread, take() has the end without traces: at a limit of processes,
  /// ranks fail, too.
  void gather(control::RankEnded end);
  /// Readable when take() has something new.
  int fd() const;
  /// When take() has something even so.
  std::optional<Deadline> next_deadline() const;
  /// What is complete or overdue, in the order of gather().
  std::vector<Gathered> take();

 private:
  struct Job;
  struct Shared;
  struct Waiting {
    control::RankEnded end;
    std::shared_ptr<Job> job;
    Deadline limit;
  };

  std::chrono::milliseconds patience_;
  std::shared_ptr<Shared> shared_;
  std::deque<Waiting> waiting_;
};

}  // namespace ddp::launcher
