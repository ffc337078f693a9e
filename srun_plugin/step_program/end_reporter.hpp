// The witness' other duty: it tells the step's store that its node is there, and how the node's ranks end.
#pragma once

#include <cstdint>
#include <string>

#include "step_program/hang_watch.hpp"
#include "step_program/node_watch.hpp"
#include "task_side/step_notes.hpp"
#include "task_side/step_store.hpp"

namespace ddp::srun_plugin {

struct ReportingNode {
  std::string name;
  std::int64_t first_rank = 0;  ///< added to a task's number: the rank of its component's first task
  StepNote step;
};

class EndReporter {
 public:
  /// The node is there. Throws as StepStore.
  EndReporter(const std::string& address, std::uint16_t port, ReportingNode node);

  /// Passes the ends on that come from the EndChannel at @p channel, until slurmstepd or the store has ended, and what
  /// @p watch and @p hang have to report, if there are such. SIGTERM, which must be blocked, says that Slurm ends the
  /// step; where this node's tasks are @p refused, so does the end of the first.
  void run(int channel, NodeWatch* watch, HangWatch* hang, bool refused = false);

 private:
  /// @return whether it was an end.
  bool take(int channel, NodeWatch* watch, bool& ended);
  /// Its loss is no loss of ends.
  template <class Function>
  void hanging(Function&& function);
  void end_step();
  void report(const RankEnd& end, bool awaited);

  ReportingNode node_;
  StepStore store_;
  HangWatch* hang_ = nullptr;
};

}  // namespace ddp::srun_plugin
