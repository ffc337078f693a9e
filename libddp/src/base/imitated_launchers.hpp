// What ranks of mpirun and of horovodrun find in their environment, and the names that programs import, for launchers
// whose users ask for them.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/torchrun_environment.hpp"

namespace ddp::base {

/// What --imitate takes: names of launchers, separated by commas.
inline constexpr std::array<std::string_view, 2> kImitatedWords{"mpirun", "horovodrun"};
/// What --as takes likewise, and DDP_AS: packages of Python in whose place libddp's are imported.
inline constexpr std::array<std::string_view, 2> kImportedWords{"horovod", "mpi4py"};

/// Which of two words a list names.
struct ChosenWords {
  bool first = false;
  bool second = false;

  bool any() const { return first || second; }
  friend bool operator==(const ChosenWords&, const ChosenWords&) = default;
};
/// @param text words, separated by commas. Throws Error(invalid_argument) that names the word that is none of @p words.
ChosenWords read_words(const std::string& attempted, std::string_view text,
                       const std::array<std::string_view, 2>& words);
/// "horovod,mpi4py"
std::string text_of(ChosenWords chosen, const std::array<std::string_view, 2>& words);

/// Horovod's cross rank and size: this node among those that have a rank of the same local rank.
struct Crossing {
  int rank = 0;
  int size = 0;
};
/// @param ranks_of_nodes in the order of nodes
Crossing crossing_of(const std::vector<int>& ranks_of_nodes, int node_rank, int local_rank);
/// Slurm's "2(x3),1": the numbers of tasks of nodes; empty for what it does not write.
std::vector<int> read_tasks_per_node(std::string_view text);

using ImitatedVariables = std::vector<std::pair<std::string, std::string>>;
/// OMPI_COMM_WORLD_RANK, ...
ImitatedVariables openmpi_variables(const TorchrunEnvironment& worker);
/// HOROVOD_RANK, ... @param host of the rank
ImitatedVariables horovod_variables(const TorchrunEnvironment& worker, Crossing crossing, const std::string& host);

}  // namespace ddp::base
