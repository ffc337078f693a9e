// What a node's first task asks ddp-step about the machine for all tasks of the node, and the answer.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ddp/binding.hpp>
#include <ddp/bytes.hpp>

#include "topology/placement/option_words.hpp"

namespace ddp::srun_plugin {

/// Both sides are of one installation, except while a site upgrades: then this number differs.
inline constexpr std::uint32_t kPlanVersion = 4;

struct PlanQuestion {
  BindPolicy bind = BindPolicy::numa;
  topology::GpuVisibility gpus = topology::GpuVisibility::all;
  std::string backend;           ///< word of --ddp-backend
  std::string node_list;         ///< of the step, as Slurm writes it
  std::string node_name;         ///< this node's name in it
  std::string store_address{};   ///< of the step's store
  std::uint16_t store_port = 0;  ///< 0: there is none, or this node does not reach it
  /// For how long this node waits to hear of the others' networks.
  std::uint16_t patience_seconds = 10;
  /// topology::RankResources of each task, by local rank. None: tasks that cannot be placed together want to know the
  /// network, in a TaskPlan that suits each.
  std::vector<Bytes> resources{};
};

/// What one task gets.
struct TaskPlan {
  std::optional<Binding> binding{};                             ///< nothing: it keeps its mask
  std::vector<std::pair<std::string, std::string>> settings{};  ///< variables that the user has not set
  std::string summary;                                          ///< "4 cores (0-3), GPU 1 (0000:3b:00.0)"
};

struct NodePlan {
  std::vector<TaskPlan> tasks{};     ///< by local rank
  std::vector<std::string> remarks;  ///< what the user may want to know
};

Bytes encode(const PlanQuestion& question);
Bytes encode(const NodePlan& plan);
/// Throw Error: protocol, invalid_argument (words, processors).
PlanQuestion decode_question(std::span<const std::byte> bytes);
NodePlan decode_plan(std::span<const std::byte> bytes);

}  // namespace ddp::srun_plugin
