#include "collectives/nccl/graph_keeper.hpp"

#include <atomic>

#include "cuda/cuda_error.hpp"
#include "cuda/driver.hpp"

namespace ddp::collectives::nccl {
namespace {

struct Kept {
  std::unique_ptr<GraphKeeper::Owners> owners;
  Kept* next = nullptr;
};

std::atomic<Kept*> dead{nullptr};

/// On a thread of the driver.
void graph_is_gone(void* kept) {
  auto* const mine = static_cast<Kept*>(kept);
  mine->next = dead.load();
  while (!dead.compare_exchange_weak(mine->next, mine)) {
  }
}

}  // namespace

std::unique_ptr<GraphKeeper::Owners> GraphKeeper::owners_of(std::span<const Operation> operations) {
  auto owners = std::make_unique<Owners>();
  for (const Operation& operation : operations) {
    if (operation.keep_alive) owners->push_back(operation.keep_alive);
  }
  return owners;
}

void GraphKeeper::keep(CUgraph graph, std::span<const Operation> operations) {
  auto kept = std::make_unique<Kept>(Kept{.owners = owners_of(operations), .next = nullptr});
  if (kept->owners->empty()) return;
  CUuserObject object = nullptr;
  cuda::check(
      cuda::driver().user_object_create(&object, kept.get(), graph_is_gone, 1, CU_USER_OBJECT_NO_DESTRUCTOR_SYNC),
      "keeping memory for a graph");
  static_cast<void>(kept.release());  // the object's
  const CUresult code = cuda::driver().graph_retain_user_object(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE);
  if (code != CUDA_SUCCESS) cuda::log_failure(cuda::driver().user_object_release(object, 1), "releasing a user object");
  cuda::check(code, "keeping memory for a graph");
}

void GraphKeeper::bury() noexcept {
  Kept* next = dead.load(std::memory_order_relaxed) == nullptr ? nullptr : dead.exchange(nullptr);
  while (next != nullptr) {
    const std::unique_ptr<Kept> kept(std::exchange(next, next->next));
  }
}

}  // namespace ddp::collectives::nccl
