// The backend of groups of one rank: everything is a copy.
#pragma once

#include <ddp/backend.hpp>
#include <ddp/tensor_executor.hpp>

#include "kernels/executor.hpp"

namespace ddp::collectives {

extern const BackendPlugin kLocalBackend;

// ---- What this library's backends for CPUs can do: all of them the same.

inline constexpr BackendTraits kCpuTraits{.serves_cpu = true,
                                          .serves_cuda = false,
                                          .completes_inline = true,
                                          .needs_progress = true,
                                          .stream_ordered = false,
                                          .detects_peer_death = true,
                                          .concurrent_collectives = 1};

// ---- What moves tensors by libddp's kernels can run its other ones, too. Not for plugins: kernels change with the
// library.

/// Beside TensorExecutor.
class KernelLauncher {
 public:
  KernelLauncher() = default;
  KernelLauncher& operator=(KernelLauncher&&) = delete;
  virtual ~KernelLauncher() = default;

  /// Puts kernels where TensorExecutor::copy puts copies, for its threads. Throws Error where there are none.
  virtual kernels::Executor& launcher() = 0;

  /// For @p executor. Throws Error(unavailable) if it is another library's.
  static kernels::Executor& of(TensorExecutor& executor);
};

}  // namespace ddp::collectives
