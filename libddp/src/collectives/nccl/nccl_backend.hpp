// Collectives of CUDA tensors over NCCL.
#pragma once

#include <memory>

#include <ddp/backend.hpp>

namespace ddp::collectives::nccl {

/// Throws Error(unavailable) where this rank cannot use NCCL: no driver, no device of its own, no library.
std::unique_ptr<Backend> create(const BackendConfig& config);

/// Which of @p visible devices is the rank's: the one it was given, the only one, or that of its place among the
/// group's ranks of its node, if there are enough. Throws Error(unavailable).
int choose_device(const BackendConfig& config, int visible);

}  // namespace ddp::collectives::nccl
