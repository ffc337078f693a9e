#include "collectives/nccl/kept_memory.hpp"

#include <deque>
#include <mutex>
#include <utility>

#include "collectives/nccl/blocking_calls.hpp"
#include "cuda/cuda_error.hpp"
#include "cuda/driver.hpp"

namespace ddp::collectives::nccl {
namespace {

struct Keeping {
  std::shared_ptr<const void> memory;
  cuda::ContextPtr context;
  cuda::Event over;
};

struct Keepings {
  std::mutex mutex;
  std::deque<Keeping> waiting;
  bool served = false;  ///< a thread looks after them
};

/// Never destroyed: threads may come back from the driver when the process ends.
Keepings& keepings() {
  static auto& instance = *new Keepings;
  return instance;
}

void wait_for_all() {
  Keepings& all = keepings();
  for (;;) {
    Keeping next;
    {
      const std::lock_guard lock(all.mutex);
      if (all.waiting.empty()) {
        all.served = false;
        return;
      }
      next = std::move(all.waiting.front());
      all.waiting.pop_front();
    }
    CUresult code = CUDA_SUCCESS;
    const cuda::ContextScope scope(*next.context, code);
    // a device that has failed uses it no more
    if (code == CUDA_SUCCESS) static_cast<void>(cuda::driver().event_synchronize(next.over.get()));
  }
}

}  // namespace

void KeptMemory::until(std::shared_ptr<const void> memory, cuda::ContextPtr context, cuda::Event over) noexcept {
  Keepings& all = keepings();
  {
    const std::lock_guard lock(all.mutex);
    all.waiting.push_back({.memory = std::move(memory), .context = std::move(context), .over = std::move(over)});
    if (std::exchange(all.served, true)) return;
  }
  if (BlockingCalls::start(wait_for_all)) return;
  const std::lock_guard lock(all.mutex);
  all.served = false;  // the next one starts a thread for this one, too
}

}  // namespace ddp::collectives::nccl
