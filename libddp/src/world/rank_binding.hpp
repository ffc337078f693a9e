// Binds a rank that a launcher without libddp started (srun, mpirun): DDP_BIND. The topology is read once a node, by
// one rank, and shared as XML through the node's part of the key-value store.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ddp/key_value_store.hpp>
#include <ddp/placement.hpp>

#include "base/env_table.hpp"

namespace ddp::world {

struct InterfaceChoice;

class RankBinding {
 public:
  /// @param environment must outlive this object. Throws Error(invalid_argument) for a DDP_BIND that cannot be
  /// understood.
  RankBinding(const base::Environment& environment, int world_size);

  /// Puts what this rank may use, and the machine's topology if it is @p leader of its node. Before a fence. Without
  /// DDP_BIND it does nothing.
  void publish(KeyValueStore& store, const std::string& key, bool leader);

  /// After the fence: places the ranks of the node, binds this process, and sets the variables of NCCL, OpenMP and
  /// others that follow from it where they are unset (setenv(3): no other thread may use the environment meanwhile).
  /// CUDA_VISIBLE_DEVICES and its like are left alone: the program may have looked at them already.
  /// @param local_ranks the ranks of this node, ascending.
  /// @param interface chosen for sockets; without a name: none needs to be.
  /// Nothing without DDP_BIND. What does not work is logged: a rank that is not bound is slow, not wrong.
  std::optional<Placement> apply(KeyValueStore& store, const std::string& key, const std::vector<int>& local_ranks,
                                 int rank, const InterfaceChoice& interface, Deadline deadline);

 private:
  const base::Environment& environment_;
  bool wanted_ = false;
  bool alone_;
};

}  // namespace ddp::world
