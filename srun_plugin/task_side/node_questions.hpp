// What a node's first task asks ddp-step for all tasks of the node: to make the node known to the step's store, and for
// its plan. What does not work is one line on standard error.
#pragma once

#include <chrono>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ddp/bytes.hpp>

#include "base/env_table.hpp"
#include "srun_side/ddp_step_client.hpp"
#include "srun_side/step_ticket.hpp"
#include "task_side/task_facts.hpp"

namespace ddp::srun_plugin {

/// "ddp: warning: rank 2 on n1: TEXT"
void warn(const TaskFacts& facts, std::string_view text);
void warn_not_placed(const TaskFacts& facts, const std::exception& error);

/// refused: --ddp-metrics cannot be served on this node, and no program of it may start. step_ends: Slurm ends the
/// step.
enum class StoreReach { none, out_of_reach, reached, refused, step_ends };

/// The store that ranks of this node are to use.
struct RanksStorePlace {
  std::string address;
  std::uint16_t port = 0;
};

/// Makes this node known to the store, which serves its tasks from then on.
/// @param program helper= of plugstack.conf. @param first_rank of this component's tasks. @param ends of the channel
/// for their ends; -1: there is none, and the tasks cannot be watched. @param command of the tasks.
/// @param variables of the witness: "TMPDIR=..." of the tasks, where what killed jobs left is removed, and who the user
/// is.
/// @param witness gets the program that was asked, where the store was reached.
StoreReach reach_store(const std::string& program, const StepTicket& ticket, const TaskFacts& facts, int first_rank,
                       int ends, const std::string& command, const std::vector<std::string>& variables,
                       std::optional<DdpStepClient>& witness);

/// What @p witness has found: that rank 0's node has the ranks' store, or the one beside srun, also where nothing else
/// is known.
RanksStorePlace find_ranks_store(std::optional<DdpStepClient>& witness, const StepTicket& ticket,
                                 const TaskFacts& facts);

/// Tells nodes that wait for this one that it takes no part in choosing a network.
void excuse_node(const StepTicket& ticket, const TaskFacts& facts, StoreReach store);

struct PlanAnswer {
  Bytes plan{};            ///< NodePlan as ddp-step encoded it; empty when it cannot be had, after a warning
  bool step_ends = false;  ///< Slurm ends the step before the program has started
};

/// @param resources of the node's tasks, as PlanQuestion has them.
PlanAnswer make_plan(const std::string& program, const StepTicket& ticket, const TaskFacts& facts, StoreReach store,
                     std::vector<Bytes> resources, const base::Environment& environment);

/// How long reach_store(), make_plan() and find_ranks_store() together may take.
std::chrono::seconds answer_limit(const StepTicket& ticket);

}  // namespace ddp::srun_plugin
