#include "collectives/kernel_launcher.hpp"

#include <ddp/error.hpp>

namespace ddp::collectives {

kernels::Executor& KernelLauncher::of(TensorExecutor& executor) {
  if (auto* const known = dynamic_cast<KernelLauncher*>(&executor)) return known->launcher();
  throw Error{{.code = ErrorCode::unavailable,
               .attempted = "computing with gradients on a device",
               .cause = "the backend that moves them does not run libddp's kernels",
               .hint = "take the backend nccl, or a hook that only averages or casts"}};
}

}  // namespace ddp::collectives
