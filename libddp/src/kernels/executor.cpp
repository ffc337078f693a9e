#include "kernels/executor.hpp"

namespace ddp::kernels {

void HostExecutor::launch(const Launch& launch) {
  kernel_table()[static_cast<std::size_t>(launch.kernel)].run(launch.argument);
}

}  // namespace ddp::kernels
