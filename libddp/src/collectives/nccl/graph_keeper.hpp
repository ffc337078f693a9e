// Memory of operations that were captured into a CUDA graph: the graph may launch them until it is destroyed.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include <ddp/operation.hpp>

#include "cuda/driver_functions.hpp"

namespace ddp::collectives::nccl {

class GraphKeeper {
 public:
  using Owners = std::vector<std::shared_ptr<const void>>;

  /// Owners of the memory of @p operations, for one who keeps them.
  static std::unique_ptr<Owners> owners_of(std::span<const Operation> operations);
  /// Keeps the owners for as long as @p graph and what is instantiated from it. Throws Error.
  static void keep(CUgraph graph, std::span<const Operation> operations);
  /// Lets go of what graphs have kept that are gone. Their destruction itself must not: it may not call CUDA, which
  /// owners of device memory do.
  static void bury() noexcept;
};

}  // namespace ddp::collectives::nccl
