// Memory that a device still uses when its last owner goes.
#pragma once

#include <memory>

#include "cuda/event.hpp"

namespace ddp::collectives::nccl {

/// Of this process; not for forked children. Thread-safe.
class KeptMemory {
 public:
  /// Owns @p memory until @p over, which has been recorded, is completed. Threads of the library's wait for it.
  static void until(std::shared_ptr<const void> memory, cuda::ContextPtr context, cuda::Event over) noexcept;
};

}  // namespace ddp::collectives::nccl
