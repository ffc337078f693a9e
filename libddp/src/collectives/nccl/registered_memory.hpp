// Memory of a device that NCCL has allocated and its communicator knows, so that it is sent and received where it lies.
#pragma once

#include <cstdint>
#include <memory>

#include "collectives/nccl/communicator.hpp"
#include "cuda/memory.hpp"

namespace ddp::collectives::nccl {

enum class Registration : std::uint8_t {
  off,
  local,   ///< ncclCommRegister, from 2.19 on
  window,  ///< ncclCommWindowRegister, from 2.27 on: at the same place of all ranks' memory
};

/// Freed with the object, from any thread, which may wait for the device; if NCCL hangs, never.
class RegisteredMemory {
 public:
  /// By ncclMemAlloc, or the driver where NCCL has it not. Throws Error.
  RegisteredMemory(const NcclLibrary& library, cuda::ContextPtr context, std::shared_ptr<Communicator> communicator,
                   std::size_t bytes);
  RegisteredMemory(const RegisteredMemory&) = delete;
  RegisteredMemory& operator=(const RegisteredMemory&) = delete;
  ~RegisteredMemory();

  void* pointer() const noexcept { return memory_; }
  /// Tells the communicator, which is not in progress. Once; what the library has not is left out. It is known when
  /// the communicator is not in progress any more, whatever this has returned.
  ncclResult_t enter(Registration how);
  /// If enter() has begun a window, and all ranks will not come: NCCL may write into it at any time.
  static void keep_if_pending(std::shared_ptr<RegisteredMemory> memory);

 private:
  /// Whether NCCL does not know it any more.
  bool leave() noexcept;

  const NcclLibrary& library_;
  const cuda::ContextPtr context_;
  const std::shared_ptr<Communicator> communicator_;
  const std::size_t bytes_;
  cuda::DeviceMemory plain_;  ///< without ncclMemAlloc
  void* memory_ = nullptr;
  void* handle_ = nullptr;
  ncclWindow_t window_ = nullptr;
  bool pending_ = false;  ///< a window was asked for
};

}  // namespace ddp::collectives::nccl
