// What moves tensors by libddp's kernels can run its other ones, too. Not for plugins: kernels change with the library.
#pragma once

#include <ddp/tensor_executor.hpp>

#include "kernels/executor.hpp"

namespace ddp::collectives {

/// Beside TensorExecutor.
class KernelLauncher {
 public:
  KernelLauncher() = default;
  KernelLauncher(const KernelLauncher&) = delete;
  KernelLauncher& operator=(const KernelLauncher&) = delete;
  virtual ~KernelLauncher() = default;

  /// Puts kernels where TensorExecutor::copy puts copies, for its threads. Throws Error where there are none.
  virtual kernels::Executor& launcher() = 0;

  /// Of @p executor. Throws Error(unavailable) if it is another library's.
  static kernels::Executor& of(TensorExecutor& executor);
};

}  // namespace ddp::collectives
