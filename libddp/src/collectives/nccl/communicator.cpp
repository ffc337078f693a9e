#include "collectives/nccl/communicator.hpp"

#include <thread>
#include <utility>

#include "base/library_thread.hpp"
#include "base/log.hpp"
#include "cuda/driver.hpp"

namespace ddp::collectives::nccl {
namespace {

// A call of NCCL in non-blocking mode takes microseconds. One that hangs, perhaps in a lock of the driver, is what the
// abort is for.
constexpr std::chrono::seconds kLongestCall{3};

/// Where leak checkers find it.
void keep_for_ever(std::shared_ptr<const void> what) {
  static std::mutex mutex;
  static auto* const kept = new std::vector<std::shared_ptr<const void>>;
  const std::lock_guard lock(mutex);
  kept->push_back(std::move(what));
}

}  // namespace

Communicator::Communicator(const NcclLibrary& library, cuda::ContextPtr context, std::string name,
                           std::chrono::milliseconds monitored_after)
    : shared_(std::make_shared<Shared>(library, std::move(context), std::move(name))) {
  shared_->slot = CallMonitor::watch(shared_->name, "; the communicator is left to it", monitored_after);
}

Communicator::~Communicator() { abort(); }

/// Without blocking.
ncclConfig_t Communicator::config() const {
  ncclConfig_t config = shared_->library.config();
  config.blocking = 0;
  config.splitShare = 0;  // one that is aborted must not take the other with it
  config.commName = shared_->name.c_str();
  return config;
}

ncclResult_t Communicator::begin(std::vector<ncclUniqueId> ids, int size, int rank) {
  begun_ = true;
  Shared& shared = *shared_;
  ncclConfig_t config = this->config();
  const std::lock_guard lock(shared.mutex);
  if (shared.ending) return ncclInvalidUsage;
  if (ids.size() > 1) {
    return shared.library->comm_init_rank_scalable(&shared.comm, size, rank, static_cast<int>(ids.size()), ids.data(),
                                                   &config);
  }
  return shared.library->comm_init_rank_config(&shared.comm, size, ids.front(), rank, &config);
}

std::optional<ncclResult_t> Communicator::split(Communicator* child, int rank) {
  ncclConfig_t config = child == nullptr ? this->config() : child->config();
  return try_with([&](ncclComm_t comm) {
    if (child != nullptr) {
      child->begun_ = true;
      shared_->children.push_back(child->shared_);
    }
    return shared_->library->comm_split(comm, child == nullptr ? kSplitNoColor : 0, rank,
                                        child == nullptr ? &shared_->none : &child->shared_->comm, &config);
  });
}

ncclResult_t Communicator::state() {
  ncclResult_t error = ncclSuccess;
  const auto result = try_with([&](ncclComm_t comm) { return shared_->library->comm_get_async_error(comm, &error); });
  if (!result) return ncclInProgress;
  return *result == ncclSuccess ? error : *result;
}

void Communicator::end(const std::shared_ptr<Shared>& shared, End how, const char* what) noexcept {
  try {
    base::start_thread([shared, how, what] {
      ncclComm_t comm = nullptr;
      {
        // not try_lock_for, which is pthread_mutex_clocklock: GCC 12's thread sanitizer does not see it
        std::unique_lock lock(shared->mutex, std::try_to_lock);
        for (const Deadline limit = Deadline::after(kLongestCall); !lock && !limit.expired();) {
          std::this_thread::sleep_for(std::chrono::microseconds(100));
          static_cast<void>(lock.try_lock());
        }
        comm = std::atomic_ref(shared->comm).exchange(nullptr);
      }
      if (comm != nullptr) {
        const CallScope scope(*shared->slot, what);
        CUresult code = CUDA_SUCCESS;
        const cuda::ContextScope context(*shared->context, code);
        const ncclResult_t result = (shared->library.functions().*how)(comm);
        if (result != ncclSuccess) {
          base::log(base::LogLevel::debug, "group '{}': {}: {}", shared->name, what, to_string(result));
          keep_for_ever(shared);  // NCCL may still show its name
        }
      }
      shared->over.store(true, std::memory_order_release);
    }).detach();
  } catch (const std::exception& error) {
    base::log(base::LogLevel::error, "group '{}': NCCL cannot be ended: {}", shared->name, error.what());
  }
}

void Communicator::abort() noexcept {
  if (shared_->ending.exchange(true)) return;
  if (!begun_) {
    shared_->over = true;
    return;
  }
  end(shared_, &NcclFunctions::comm_abort, "in ncclCommAbort");
}

void Communicator::finish(Deadline deadline) noexcept {
  if (shared_->ending.exchange(true) || !begun_) {
    if (!begun_) shared_->over = true;
  } else {
    const auto until_done = [&] {
      ncclResult_t result = state();
      while (result == ncclInProgress && !deadline.expired()) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
        result = state();
      }
      return result;
    };
    ncclResult_t result = until_done();
    if (result == ncclSuccess) {
      const auto finalize = [&] {
        return try_with([&](ncclComm_t comm) { return shared_->library->comm_finalize(comm); });
      };
      std::optional<ncclResult_t> begun = finalize();
      for (; !begun && !deadline.expired(); begun = finalize()) {
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
      result = begun.value_or(ncclInProgress);
      if (result == ncclInProgress || result == ncclSuccess) result = until_done();
    }
    const bool quiet = result == ncclSuccess;
    end(shared_, quiet ? &NcclFunctions::comm_destroy : &NcclFunctions::comm_abort,
        quiet ? "in ncclCommDestroy" : "in ncclCommAbort");
  }
  while (!over() && !deadline.expired()) std::this_thread::sleep_for(std::chrono::microseconds(200));
  if (over()) return;
  base::log(base::LogLevel::warning, "group '{}': NCCL did not end its communicator in time; it is left to itself",
            shared_->name);
}

}  // namespace ddp::collectives::nccl
