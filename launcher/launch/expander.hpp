// Requests further nodes from Slurm for a running job (--replace, --grow-to). Slurm cannot add nodes to an allocation,
// so each request is a salloc of its own, whose command is ddprun --join.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>

#include "base/env_table.hpp"
#include "coordinator/coordinator.hpp"
#include "launch/heard_program.hpp"
#include "stream/event_loop.hpp"

namespace ddp::launcher {

/// What Slurm says about the allocation that a job runs in, as squeue prints it with kAllocationFormat.
inline constexpr const char* kAllocationFormat = "%L|%P|%a|%q|%v|%f";

/// salloc's command line for 1 to @p nodes nodes like those of this process's allocation, for at most its remaining
/// time. A property for which the environment has salloc's own variable (SALLOC_PARTITION) is left to that.
/// @param facts a line in kAllocationFormat; empty: Slurm's defaults
std::vector<std::string> salloc_command(int nodes, const std::string& facts, const base::Environment& environment);

/// How the last requests went, for the pause before the next one.
class RequestPause {
 public:
  using Time = Deadline::Clock::time_point;
  /// The nodes of a request have taken part from @p begin to @p end.
  void ended(Time begin, Time end);
  Time next() const { return next_; }

 private:
  int short_lives_ = 0;  ///< in a row
  Time next_{};
};

/// At most one request is pending, for all nodes that are missing; Slurm may grant some. One that Slurm refuses, or
/// that brings no node, is the last until a further node is missing. Requests end with this object, and with ddprun
/// even if that is killed: salloc then gives its allocation back. Not thread-safe.
class Expander {
 public:
  /// The others must outlive the object.
  Expander(stream::EventLoop& loop, const base::Environment& environment, Coordinator& coordinator);
  Expander& operator=(Expander&&) = delete;
  ~Expander();

  std::optional<Deadline> next_deadline() const;
  /// After each turn of the loop.
  void time_passed();
  /// All sallocs have.
  bool ended() const { return requests_.empty(); }
  /// SIGTERM to all; SIGKILL at @p deadline.
  void end(Deadline deadline);

 private:
  using Time = Deadline::Clock::time_point;
  enum class Stage {
    asking,   ///< squeue, about this allocation
    pending,  ///< salloc
    granted,  ///< its nodes are on their way
    came,     ///< and have joined, at least one
  };
  struct Request {
    Stage stage = Stage::asking;
    int nodes = 0;
    HeardProgram program{};
    std::string job{};  ///< Slurm's number
    std::string last_line{};
    std::string error{};
    bool cancelled = false;  ///< by this object
    Time since{};            ///< its nodes came
  };

  void begin(int nodes);
  void take_line(Request& request, const std::string& line);
  /// @return whether nothing is left of it
  bool settle(Request& request);
  void gave_nothing(const std::string& why);
  bool is_due(Time now) const;

  stream::EventLoop& loop_;
  const base::Environment& environment_;
  Coordinator& coordinator_;
  std::vector<Request> requests_;  ///< only the last one may not have brought its nodes
  std::optional<int> given_up_;    ///< so many were missing when a request brought none
  RequestPause pause_;
};

}  // namespace ddp::launcher
