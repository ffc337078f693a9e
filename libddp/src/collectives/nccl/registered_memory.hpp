// Memory of a device that NCCL has allocated and its communicator knows, so that it is sent and received where it lies.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ddp/backend.hpp>
#include <ddp/operation.hpp>

#include "collectives/nccl/communicator.hpp"
#include "cuda/context.hpp"
#include "cuda/driver.hpp"
#include "cuda/stream.hpp"

namespace ddp::collectives::nccl {

enum class Registration : std::uint8_t {
  off,
  local,   ///< ncclCommRegister, from 2.19 on
  window,  ///< ncclCommWindowRegister, from 2.27 on: at the same place of all ranks' memory
};

/// Allocating, deregistering and freeing can wait for all work on the device, so threads of their own do it.
class RegisteredMemory {
 public:
  /// By ncclMemAlloc, or the driver where NCCL has it not; zeroed. It is freed some time after its last owner has gone,
  /// which never blocks and may be any thread; never, if NCCL or the device hangs, or in a forked child.
  /// @param group, @param monitored_after as CallMonitor::watch. Throws Error, also when the device has not come to it
  /// by @p deadline. Waits with pauses.
  static std::shared_ptr<RegisteredMemory> allocate(const NcclLibrary& library, cuda::ContextPtr context,
                                                    std::shared_ptr<Communicator> communicator, std::size_t bytes,
                                                    const std::string& group, std::chrono::milliseconds monitored_after,
                                                    Deadline deadline, const Backend::Pause& pause);
  RegisteredMemory& operator=(RegisteredMemory&&) = delete;

  void* pointer() const noexcept { return memory_; }
  /// Tells the communicator, which is not in progress. Once; what the library has not is left out. It is known when
  /// the communicator is not in progress any more, whatever this has returned. As Communicator::try_with.
  std::optional<ncclResult_t> register_as(Registration how);
  /// If register_as() has begun a window, and all ranks will not come: NCCL may write into it at any time. Never freed
  /// then.
  void keep_if_pending() noexcept { kept_ = pending_; }

 private:
  RegisteredMemory(const NcclLibrary& library, cuda::ContextPtr context, std::shared_ptr<Communicator> communicator,
                   std::size_t bytes, std::shared_ptr<CallSlot> calls);
  ~RegisteredMemory() = default;

  void obtain(Deadline deadline);
  void obtain();
  void clear();
  /// Runs for the last owner.
  static void release(RegisteredMemory* memory) noexcept;
  static void keep_for_ever(RegisteredMemory* memory) noexcept;
  /// False if it must not be freed.
  bool free() noexcept;
  /// Whether NCCL does not know it any more.
  bool leave() noexcept;

  const NcclLibrary& library_;
  const cuda::ContextPtr context_;
  const std::shared_ptr<Communicator> communicator_;
  const std::size_t bytes_;
  const std::shared_ptr<CallSlot> calls_;
  const pid_t process_;
  cuda::DeviceMemory plain_;  ///< without ncclMemAlloc
  void* memory_ = nullptr;
  void* handle_ = nullptr;
  ncclWindow_t window_ = nullptr;
  bool pending_ = false;  ///< a window was asked for
  bool kept_ = false;
  RegisteredMemory* next_ = nullptr;  ///< of what is kept for ever
};

// ---- Memory that a device still uses when its last owner goes.

/// One per process; not for forked children. Thread-safe.
class KeptMemory {
 public:
  /// Owns @p memory until @p over, which has been recorded, is completed. Threads of the library's wait for it.
  static void until(std::shared_ptr<const void> memory, cuda::ContextPtr context, cuda::Event over) noexcept;
};

// ---- Memory of operations that were captured into a CUDA graph: the graph may launch them until it is destroyed.

class GraphKeeper {
 public:
  using Owners = std::vector<std::shared_ptr<const void>>;

  /// Owners of the memory of @p operations, for one who keeps them.
  static std::unique_ptr<Owners> owners_of(std::span<const Operation> operations);
  /// Keeps the owners for as long as @p graph and what is instantiated from it. Throws Error.
  static void keep(CUgraph graph, std::span<const Operation> operations);
  /// Lets go of what graphs have kept that are gone. Their destruction itself must not: it may not call CUDA, which
  /// owners of device memory do.
  static void free_unused() noexcept;
};

}  // namespace ddp::collectives::nccl
