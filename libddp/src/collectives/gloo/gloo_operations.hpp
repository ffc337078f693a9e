// Executes single operations on a connected mesh with Gloo's algorithms.
#pragma once

#include "collectives/gloo/gloo_mesh.hpp"

namespace ddp::collectives::gloo_backend {

/// Blocks until the collective is done. Throws gloo's exceptions.
void run_collective(const std::shared_ptr<GlooMesh>& mesh, const Operation& operation, Deadline deadline);

/// Posts a send or receive.
std::unique_ptr<Transfer> start_transfer(const std::shared_ptr<GlooMesh>& mesh, const Operation& operation);

}  // namespace ddp::collectives::gloo_backend
