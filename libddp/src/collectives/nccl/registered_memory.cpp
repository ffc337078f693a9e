#include "collectives/nccl/registered_memory.hpp"

#include <mutex>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/log.hpp"

namespace ddp::collectives::nccl {
namespace {

// A communicator is in progress for microseconds, unless NCCL hangs.
constexpr std::chrono::seconds kLongestDeparture{3};

}  // namespace

RegisteredMemory::RegisteredMemory(const NcclLibrary& library, cuda::ContextPtr context,
                                   std::shared_ptr<Communicator> communicator, std::size_t bytes)
    : library_(library), context_(std::move(context)), communicator_(std::move(communicator)), bytes_(bytes) {
  if (library_->mem_alloc == nullptr) {
    plain_ = cuda::DeviceMemory(context_, bytes);
    memory_ = plain_.pointer();
    return;
  }
  const cuda::ContextScope scope(*context_);
  const ncclResult_t result = library_->mem_alloc(&memory_, bytes);
  if (result == ncclSuccess) return;
  throw Error{{.code = ErrorCode::system,
               .attempted = fmt::format("allocating {} bytes on CUDA device {} by NCCL", bytes, context_->device()),
               .cause = library_.last_error(nullptr),
               .native = to_string(result),
               .ranks = {},
               .hint = {}}};
}

RegisteredMemory::~RegisteredMemory() {
  CUresult code = CUDA_SUCCESS;
  const cuda::ContextScope scope(*context_, code);
  if (!leave() || communicator_->aborting()) {  // the device may write to it, and freeing would wait
    base::log(base::LogLevel::error, "{} bytes that NCCL knows are kept for ever: its last call has not ended", bytes_);
    static_cast<void>(new cuda::DeviceMemory(std::move(plain_)));
    return;
  }
  if (plain_.size_bytes() > 0) return;
  const ncclResult_t result = library_->mem_free(memory_);
  if (result != ncclSuccess) base::log(base::LogLevel::error, "freeing memory of NCCL's: {}", to_string(result));
}

ncclResult_t RegisteredMemory::enter(Registration how) {
  const ncclResult_t result = communicator_->with([&](ncclComm_t comm) {
    if (how == Registration::window && library_->comm_window_register != nullptr) {
      pending_ = true;  // whatever it returns: the window is made later
      return library_->comm_window_register(comm, memory_, bytes_, &window_, kWindowSymmetric);
    }
    if (how == Registration::off || library_->comm_register == nullptr) return ncclSuccess;
    return library_->comm_register(comm, memory_, bytes_, &handle_);
  });
  return result;
}

void RegisteredMemory::keep_if_pending(std::shared_ptr<RegisteredMemory> memory) {
  if (!memory->pending_) return;
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::shared_ptr<RegisteredMemory>>;  // where leak checkers find it
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(memory));
}

bool RegisteredMemory::leave() noexcept {
  if (!pending_ && handle_ == nullptr) return true;
  const Deadline limit = Deadline::after(kLongestDeparture);
  bool busy = true;
  while (busy && !limit.expired()) {
    // in one turn, since others may launch operations
    const ncclResult_t result = communicator_->with([&](ncclComm_t comm) {
      ncclResult_t state = ncclSuccess;
      library_->comm_get_async_error(comm, &state);
      busy = state == ncclInProgress;
      if (busy) return ncclSuccess;
      if (window_ != nullptr) return library_->comm_window_deregister(comm, window_);
      return handle_ != nullptr ? library_->comm_deregister(comm, handle_) : ncclSuccess;
    });
    if (result == ncclInvalidUsage) return true;  // the communicator has gone, and with it what it knew
    if (result != ncclSuccess && result != ncclInProgress) {
      base::log(base::LogLevel::warning, "NCCL does not let go of memory: {}", to_string(result));
    }
    if (busy) std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return !busy;
}

}  // namespace ddp::collectives::nccl
