// Where kernels run. The functions of copies.hpp and compression.hpp say what to launch; they are the same
// for processors and devices.
#pragma once

#include <cstdint>

#include "kernels/kernel_table.hpp"

namespace ddp::kernels {

struct Launch {
  Kernel kernel;
  std::uint32_t blocks;  ///< at least 1, each of kThreads threads
  const void* argument;  ///< the kernel's struct; read before launch() returns
};

class Executor {
 public:
  Executor() = default;
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;
  virtual ~Executor() = default;

  /// Runs the kernel, or queues it behind what was launched before. Throws Error where that fails.
  virtual void launch(const Launch& launch) = 0;
};

/// Runs kernels at once, on the calling thread.
class HostExecutor final : public Executor {
 public:
  void launch(const Launch& launch) override;
};

}  // namespace ddp::kernels
