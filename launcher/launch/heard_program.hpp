// A program of Slurm's (squeue, scontrol, salloc) that runs beside the job, and what it says, line by line.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ddp/deadline.hpp>

#include "base/env_table.hpp"
#include "base/process.hpp"
#include "base/unique_fd.hpp"
#include "stream/event_loop.hpp"

namespace ddp::launcher {

enum class Heard {
  all,     ///< standard output and standard error
  errors,  ///< standard error only; descriptor 3 is ddprun's standard error, for what it starts
};

/// It does not know of this process's allocation (SLURM_*), and gets SIGTERM when ddprun dies. Destruction kills it.
/// Empty by default. Move-only, not thread-safe.
class HeardProgram {
 public:
  HeardProgram() = default;
  /// @p loop wakes up for it, and must outlive the object. @param words of its command line. Throws ExitError where
  /// there is no such program, Error(system) when no process can be made.
  HeardProgram(stream::EventLoop& loop, const base::Environment& environment, std::vector<std::string> words,
               Heard heard);
  HeardProgram(HeardProgram&& other) noexcept { *this = std::move(other); }
  HeardProgram& operator=(HeardProgram&& other) noexcept;
  ~HeardProgram() { forget(); }

  /// Whether one was started, which may have ended.
  explicit operator bool() const noexcept { return static_cast<bool>(process_); }
  /// Calls @p take with each whole line that has come; lines are cut.
  void read(const std::function<void(const std::string&)>& take);
  /// Nothing while it runs. Then it has read all.
  std::optional<base::ProcessEnd> end(const std::function<void(const std::string&)>& take);
  void signal(int number) noexcept { process_.signal(number); }
  /// SIGTERM, and SIGKILL at @p deadline.
  void terminate(Deadline deadline) noexcept;

 private:
  void forget() noexcept;

  stream::EventLoop* loop_ = nullptr;
  base::ChildProcess process_;
  base::UniqueFd words_;
  std::string text_;  ///< of a line that is not whole
};

}  // namespace ddp::launcher
