#include "collectives/nccl/registered_memory.hpp"

#include <unistd.h>

#include <atomic>
#include <deque>
#include <future>
#include <mutex>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/log.hpp"
#include "collectives/nccl/call_monitor.hpp"

namespace ddp::collectives::nccl {
namespace {

// A communicator is busy for microseconds, and aborted within milliseconds unless NCCL hangs.
constexpr std::chrono::seconds kLongestDeparture{5};

std::atomic<int> being_freed{0};

void pause_briefly() { std::this_thread::sleep_for(std::chrono::microseconds(100)); }

}  // namespace

RegisteredMemory::RegisteredMemory(const NcclLibrary& library, cuda::ContextPtr context,
                                   std::shared_ptr<Communicator> communicator, std::size_t bytes,
                                   std::shared_ptr<CallSlot> calls)
    : library_(library),
      context_(std::move(context)),
      communicator_(std::move(communicator)),
      bytes_(bytes),
      calls_(std::move(calls)),
      process_(::getpid()) {}

std::shared_ptr<RegisteredMemory> RegisteredMemory::allocate(const NcclLibrary& library, cuda::ContextPtr context,
                                                             std::shared_ptr<Communicator> communicator,
                                                             std::size_t bytes, const std::string& group,
                                                             std::chrono::milliseconds monitored_after,
                                                             Deadline deadline, const Backend::Pause& pause) {
  auto calls = CallMonitor::watch(group, "; the memory stays allocated until it does", monitored_after);
  const std::shared_ptr<RegisteredMemory> memory(
      new RegisteredMemory(library, std::move(context), std::move(communicator), bytes, std::move(calls)), &release);
  const auto promise = std::make_shared<std::promise<void>>();
  std::future<void> obtained = promise->get_future();
  const bool started = BlockingCalls::start([memory, promise, deadline] {
    try {
      const CallScope call(*memory->calls_, "allocating memory");
      const cuda::ContextScope scope(*memory->context_);
      memory->obtain(deadline);
      memory->clear();
      promise->set_value();
    } catch (...) {
      promise->set_exception(std::current_exception());
    }
  });
  while (started) {
    if (obtained.wait_for(std::chrono::seconds(0)) == std::future_status::ready) {
      obtained.get();
      return memory;
    }
    if (deadline.expired()) break;
    pause();
  }
  throw Error{{.code = started ? ErrorCode::timeout : ErrorCode::system,
               .attempted = fmt::format("allocating {} bytes for group '{}'", bytes, group),
               .cause = started ? "the device did not start it in time" : "no more threads can be started",
               .hint = started ? "work on the device that does not end holds it up" : "see ulimit -u"}};
}

/// Retries while memory is being freed, which may make room.
void RegisteredMemory::obtain(Deadline deadline) {
  for (;;) {
    const bool last = being_freed == 0 || deadline.expired();
    try {
      return obtain();
    } catch (const Error&) {
      if (last) throw;
    }
    pause_briefly();
  }
}

void RegisteredMemory::obtain() {
  if (library_->mem_alloc == nullptr) {
    plain_ = cuda::DeviceMemory(context_, bytes_);
    memory_ = plain_.pointer();
    return;
  }
  const ncclResult_t result = library_->mem_alloc(&memory_, bytes_);
  if (result == ncclSuccess) return;
  memory_ = nullptr;
  throw Error{{.code = ErrorCode::system,
               .attempted = fmt::format("allocating {} bytes on CUDA device {} by NCCL", bytes_, context_->device()),
               .cause = library_.last_error(nullptr),
               .native = to_string(result)}};
}

/// Uses a stream of its own: an operation that hangs in the group's would delay it.
void RegisteredMemory::clear() {
  const cuda::Stream stream(context_, cuda::StreamPriority::highest);
  const auto address = reinterpret_cast<CUdeviceptr>(memory_);
  cuda::check(cuda::driver().memset_d8_async(address, 0, bytes_, stream.get()), "clearing memory");
  cuda::check(cuda::driver().stream_synchronize(stream.get()), "clearing memory");
}

std::optional<ncclResult_t> RegisteredMemory::register_as(Registration how) {
  return communicator_->try_with([&](ncclComm_t comm) {
    if (how == Registration::window && library_->comm_window_register != nullptr) {
      pending_ = true;  // whatever it returns: NCCL makes the window later
      return library_->comm_window_register(comm, memory_, bytes_, &window_, kWindowSymmetric);
    }
    if (how == Registration::off || library_->comm_register == nullptr) return ncclSuccess;
    return library_->comm_register(comm, memory_, bytes_, &handle_);
  });
}

void RegisteredMemory::release(RegisteredMemory* memory) noexcept {
  if (memory->memory_ == nullptr) {
    delete memory;
    return;
  }
  // a forked child only has the memory's address: CUDA, NCCL and the threads belong to its parent
  if (memory->kept_ || memory->process_ != ::getpid()) return keep_for_ever(memory);
  ++being_freed;
  const bool started = BlockingCalls::start([memory] {
    if (memory->free()) {
      delete memory;
    } else {
      base::log(base::LogLevel::error, "{} bytes that NCCL knows are never freed: its last call has not ended",
                memory->bytes_);
      keep_for_ever(memory);
    }
    --being_freed;
  });
  if (started) return;
  keep_for_ever(memory);
  --being_freed;
}

/// Keeps it where leak checkers find it. Takes no lock, which another thread of a forked child's parent may have held.
void RegisteredMemory::keep_for_ever(RegisteredMemory* memory) noexcept {
  static std::atomic<RegisteredMemory*> kept{nullptr};
  memory->next_ = kept.load();
  while (!kept.compare_exchange_weak(memory->next_, memory)) {
  }
}

bool RegisteredMemory::free() noexcept {
  const CallScope call(*calls_, "freeing memory");
  CUresult code = CUDA_SUCCESS;
  const cuda::ContextScope scope(*context_, code);
  if (!leave()) return false;
  const Deadline limit = Deadline::after(kLongestDeparture);
  while (communicator_->aborting()) {  // the device may still write to it
    if (limit.expired()) return false;
    pause_briefly();
  }
  if (plain_.size_bytes() > 0) {
    const cuda::DeviceMemory freed(std::move(plain_));
    return true;
  }
  const ncclResult_t result = library_->mem_free(memory_);
  if (result != ncclSuccess) base::log(base::LogLevel::error, "freeing memory of NCCL's: {}", to_string(result));
  return true;
}

bool RegisteredMemory::leave() noexcept {
  if (!pending_ && handle_ == nullptr) return true;
  const Deadline limit = Deadline::after(kLongestDeparture);
  while (!limit.expired()) {
    bool busy = false;
    // in one turn, since other threads may launch operations
    const auto result = communicator_->try_with([&](ncclComm_t comm) {
      ncclResult_t state = ncclSuccess;
      library_->comm_get_async_error(comm, &state);
      busy = state == ncclInProgress;
      if (busy) return ncclSuccess;
      if (window_ != nullptr) return library_->comm_window_deregister(comm, window_);
      return handle_ != nullptr ? library_->comm_deregister(comm, handle_) : ncclSuccess;
    });
    if (result == ncclInvalidUsage) return true;  // the communicator is gone, and with it the registration
    if (result && !busy) {
      if (*result != ncclSuccess && *result != ncclInProgress) {
        base::log(base::LogLevel::warning, "NCCL does not let go of memory: {}", to_string(*result));
      }
      return true;
    }
    pause_briefly();
  }
  return false;
}

namespace {

struct Keeping {
  std::shared_ptr<const void> memory;
  cuda::ContextPtr context;
  cuda::Event over;
};

struct Keepings {
  std::mutex mutex;
  std::deque<Keeping> waiting;
  bool served = false;  ///< a thread handles the list
};

/// Never destroyed: threads may return from the driver while the process ends.
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
    // a failed device no longer uses it
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
  all.served = false;  // the next call starts a thread for this memory, too
}

namespace {

struct Kept {
  std::unique_ptr<GraphKeeper::Owners> owners;
  Kept* next = nullptr;
};

std::atomic<Kept*> dead{nullptr};

/// Runs on a thread of the driver.
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
  static_cast<void>(kept.release());  // the user object owns it
  const CUresult code = cuda::driver().graph_retain_user_object(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE);
  if (code != CUDA_SUCCESS) cuda::log_failure(cuda::driver().user_object_release(object, 1), "releasing a user object");
  cuda::check(code, "keeping memory for a graph");
}

void GraphKeeper::free_unused() noexcept {
  Kept* next = dead.load(std::memory_order_relaxed) == nullptr ? nullptr : dead.exchange(nullptr);
  while (next != nullptr) {
    const std::unique_ptr<Kept> kept(std::exchange(next, next->next));
  }
}

}  // namespace ddp::collectives::nccl
