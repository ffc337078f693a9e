// Interpreters for the ranks of the next generation, which import modules while those of this one run (--warm-workers).
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/process.hpp"
#include "base/unique_fd.hpp"
#include "workers/spawn.hpp"
#include "workers/worker_environment.hpp"

namespace ddp::launcher {

/// Whether ranks of two generations may differ in this variable though one of them gets the other's interpreter: it
/// says who the rank is and where it finds the others, which libraries read once the program runs.
bool is_late_variable(std::string_view name);
EnvironmentMap without_late_variables(const EnvironmentMap& environment);

/// An interpreter, and the rank for which it is.
struct WarmRank {
  SpawnRequest request;      ///< as for a cold rank; its streams are not used
  EnvironmentMap variables;  ///< without the late ones
  std::size_t position;      ///< of the program among the arguments (program_position())
};

/// Owns the processes: destruction kills and reaps those that were not taken. For a process's main thread, as
/// start_worker(). Not thread-safe.
class WarmWorkers {
 public:
  struct Events {
    std::function<void(std::size_t local_rank, pid_t pid)> ready;  ///< it has imported its modules
    /// of the first interpreter, which stands for all: "torch: ModuleNotFoundError: No module named 'torch'"
    std::function<void(const std::string& failure)> not_imported;
  };

  /// @param modules with commas. @param ranks by local rank. No process is started before advance().
  WarmWorkers(std::string modules, std::vector<WarmRank> ranks, Events events);
  WarmWorkers& operator=(WarmWorkers&&) = delete;
  ~WarmWorkers();

  /// Starts the first interpreter, or the next one once the previous has imported its modules: one at a time, since its
  /// rank of the running generation needs the processor more. Throws as start_worker().
  void advance();
  /// Call advance() when it is readable; -1: all have been started.
  int fd() const { return importing_ ? ranks_[started_ - 1].channel.get() : -1; }

  /// Makes the interpreter the rank that @p request describes. Nothing where there is none, it has ended, was started
  /// for something else, or still imports, which makes it deaf to signals: then start the rank anew.
  std::optional<StartingWorker> take(std::size_t local_rank, const SpawnRequest& request,
                                     const EnvironmentMap& environment);

 private:
  struct Interpreter {
    WarmRank rank;
    base::ChildProcess process{};
    base::UniqueFd channel{};
  };
  void start(Interpreter& interpreter);
  void read_report(Interpreter& interpreter);

  std::string modules_;
  std::vector<Interpreter> ranks_;
  Events events_;
  std::size_t started_ = 0;  ///< of ranks_
  bool importing_ = false;   ///< the last one that was started
};

}  // namespace ddp::launcher
