// Executes single operations on a connected mesh with Gloo's algorithms.
#pragma once

#include "collectives/gloo/gloo_mesh.hpp"

namespace ddp::collectives::gloo_backend {

/// A posted send or receive.
class Transfer {
 public:
  virtual ~Transfer() = default;
  /// Returns when the memory may be used again; throws when it fails or the mesh is aborted.
  virtual void wait(Deadline deadline) = 0;
};

/// Blocks until the collective is done. Throws gloo's exceptions.
void run_collective(const std::shared_ptr<GlooMesh>& mesh, const Operation& operation, Deadline deadline);

/// Posts a send or receive.
std::unique_ptr<Transfer> start_transfer(const std::shared_ptr<GlooMesh>& mesh, const Operation& operation);

}  // namespace ddp::collectives::gloo_backend
