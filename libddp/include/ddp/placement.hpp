// Which GPU, NICs, NUMA node and cores each rank of a node should use: a pure function of the machine and the request,
// equal on every rank, the launcher and a login node.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ddp/cpu_set.hpp>

namespace ddp {

class Topology;

/// The part of the machine inside which a rank's cores are chosen.
enum class BindPolicy {
  numa,    ///< an even share of the cores of the nearest NUMA node
  core,    ///< one core
  socket,  ///< an even share of the cores of the nearest package
  none,    ///< no binding: all allowed cores
};
std::string_view to_string(BindPolicy policy) noexcept;  ///< the enumerator's name: "numa"
/// Throws Error(invalid_argument) that lists the accepted words.
BindPolicy parse_bind_policy(std::string_view word);

/// What place() is asked for.
struct PlacementRequest {
  int num_ranks = 1;                     ///< on this node; at least 1
  BindPolicy policy = BindPolicy::numa;  ///< which cores a rank gets
  /// Processors that may be used: one set for all ranks, or one per rank. Empty: those that the topology allows.
  std::vector<CpuSet> allowed{};
  /// Indices of the GPUs that may be used, in the order in which frameworks number them (as given by a
  /// *_VISIBLE_DEVICES variable); local rank i then gets the i-th one. Nothing: all visible GPUs, in the order that
  /// fits best.
  std::optional<std::vector<int>> gpus{};
};

/// A choice and its reason, for --explain.
struct Decision {
  std::string subject;                      ///< "GPU", "NIC", "NUMA node", "cores"
  std::string chosen;                       ///< "mlx5_3"
  std::string reason;                       ///< one sentence
  std::vector<std::string> alternatives{};  ///< each "mlx5_0: NODE, further than PIX"
};

/// What one rank should use. Indices are those of the Topology.
struct Placement {
  int local_rank = 0;               ///< from 0
  std::optional<int> gpu;           ///< index in Topology::gpus(); nothing: the rank has none
  bool gpu_shared = false;          ///< other ranks have the same GPU: there are more ranks than GPUs
  std::vector<int> nics;            ///< nearest first; the first one is the rank's own; empty if no NIC is usable
  std::vector<int> numa_nodes;      ///< NUMA nodes of the cores, ascending
  CpuSet cpus;                      ///< never empty, and a subset of what is allowed
  int num_cores = 0;                ///< physical cores among them
  bool cores_shared = false;        ///< other ranks may run on the same cores: there are more ranks than cores
  std::vector<Decision> decisions;  ///< why, in the order in which they were made
};

/// An environment variable of NCCL, UCX, PyTorch's gloo or OpenMP that suits a rank's placement.
struct EnvironmentSetting {
  std::string name;    ///< "NCCL_IB_HCA"
  std::string value;   ///< "=mlx5_0:1"
  std::string reason;  ///< one sentence
};

/// One placement for each rank, by local rank. Deterministic.
///
/// GPUs: each rank gets one of its own while there are enough; with more ranks than GPUs, ranks are spread evenly and
/// neighbours share. Ascending local ranks have ascending GPUs.
/// NICs: the nearest usable one; among equally near ones, each is used once before any is used twice.
/// Cores: those near the rank's GPU, split evenly; without GPUs, ranks are spread over the NUMA nodes.
/// A rank whose allowed set has none of its nearest cores gets its allowed set.
///
/// Throws Error(invalid_argument): num_ranks < 1, an unknown GPU index, a number of allowed sets that is neither 0, 1
/// nor num_ranks, or an allowed set without any processor of this machine.
std::vector<Placement> place(const Topology& topology, const PlacementRequest& request);

}  // namespace ddp
