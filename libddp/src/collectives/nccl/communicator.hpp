// An NCCL communicator: made without blocking, and ended by threads that may block. NCCL's calls for its end wait for
// kernels, for threads and for peers, so no caller of the library makes them.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>

#include "collectives/nccl/call_monitor.hpp"
#include "collectives/nccl/nccl_library.hpp"
#include "cuda/context.hpp"

namespace ddp::collectives::nccl {

/// Calls come from one thread at a time, with the context current, but for try_with(), abort(), over() and aborting().
class Communicator {
 public:
  /// @param name shown by NCCL's logs and tools. @param monitored_after as CallMonitor::watch.
  Communicator(const NcclLibrary& library, cuda::ContextPtr context, std::string name,
               std::chrono::milliseconds monitored_after);
  Communicator& operator=(Communicator&&) = delete;
  /// What has not ended then continues without it.
  ~Communicator();

  /// Starts to meet the other ranks.
  ncclResult_t begin(std::vector<ncclUniqueId> ids, int size, int rank);
  /// Starts to split @p child off, which has not begun; null: this rank goes without. Not while in progress. As
  /// try_with().
  std::optional<ncclResult_t> split(Communicator* child, int rank);
  bool begun() const noexcept { return begun_.load(); }

  /// Calls with it, as use(ncclComm_t), unless it is being ended: then ncclInvalidUsage. Empty, and nothing called:
  /// another thread is in a call of it, which may last.
  template <class Use>
  std::optional<ncclResult_t> try_with(Use&& use) {
    const std::unique_lock lock(shared_->mutex, std::try_to_lock);
    if (!lock) return std::nullopt;
    const ncclComm_t comm = std::atomic_ref(shared_->comm).load();
    return comm == nullptr ? ncclInvalidUsage : use(comm);
  }
  /// ncclInProgress while an earlier call of it continues, or another thread's; else whether it is sound.
  ncclResult_t state();

  /// Ends it on a thread of its own, whatever it does. From any thread; never blocks; the first call counts.
  void abort() noexcept;
  /// Whether nothing of it continues in NCCL.
  bool over() const noexcept { return shared_->over.load(std::memory_order_acquire); }
  /// Whether it is being ended, and NCCL has not come back from that.
  bool aborting() const noexcept { return shared_->ending.load() && !over(); }
  /// Ends it in peace: waits for the other ranks until @p deadline, then as abort().
  void finish(Deadline deadline) noexcept;

 private:
  /// Lives as long as the thread that ends it.
  struct Shared {
    Shared(const NcclLibrary& its_library, cuda::ContextPtr its_context, std::string its_name)
        : library(its_library), context(std::move(its_context)), name(std::move(its_name)) {}
    const NcclLibrary& library;
    const cuda::ContextPtr context;
    const std::string name;  ///< NCCL keeps the pointer
    std::shared_ptr<CallSlot> slot;
    std::mutex mutex;           ///< held during NCCL's calls; deregistering alone may block
    ncclComm_t comm = nullptr;  ///< written by NCCL; taken away without the lock from a call that hangs
    ncclComm_t none = nullptr;  ///< of a split that this rank goes without
    std::vector<std::shared_ptr<Shared>> children;  ///< NCCL writes into them, perhaps late
    std::atomic<bool> ending{false};
    std::atomic<bool> over{false};
  };
  ncclConfig_t config() const;
  using End = ncclResult_t (*NcclFunctions::*)(ncclComm_t);
  static void end(const std::shared_ptr<Shared>& shared, End how, const char* what) noexcept;

  const std::shared_ptr<Shared> shared_;
  /// Set before begin() looks at Shared::ending, read after abort() has set that: one of them sees the other.
  std::atomic<bool> begun_{false};
};

}  // namespace ddp::collectives::nccl
