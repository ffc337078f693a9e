// What the plugin does on the nodes, as the user: the environment and binding of each task, between fork and exec.
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>

#include "srun_side/plugin_options.hpp"
#include "task_side/node_channels.hpp"
#include "task_side/node_questions.hpp"

// SPANK for C++: its header has no extern "C" of its own in some releases.
extern "C" {
#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <slurm/spank.h>
}

namespace ddp::srun_plugin {

class TaskSide {
 public:
  explicit TaskSide(std::string ddp_step) : ddp_step_(std::move(ddp_step)) {}

  /// In slurmstepd, before it forks the tasks.
  void before_fork(spank_t spank);

  /// In each task, after Slurm has prepared everything. Does nothing in steps without --ddp. What does not work is said
  /// in one line on the task's standard error, and the task runs without it.
  void prepare_task(spank_t spank);

  /// In slurmstepd, as root: passes on how a task has ended.
  void task_ended(spank_t spank) noexcept;

 private:
  /// For this task, from the node's first one or by itself.
  NodeAnswer node_answer(spank_t spank, const StepTicket& ticket, const TaskFacts& facts,
                         const base::Environment& environment);
  void prepare(spank_t spank, const std::string& ticket_text, const BeforeProgram& before);

  std::string ddp_step_;
  std::unique_ptr<NoticeBoard> board_;
  std::unique_ptr<EndChannel> ends_;
};

}  // namespace ddp::srun_plugin
