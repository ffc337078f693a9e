// What NCCL is called for each operation of a group.
#pragma once

#include <ddp/operation.hpp>

#include "collectives/nccl/nccl_library.hpp"

namespace ddp::collectives::nccl {

// ---- Calls of NCCL that start as one. A group that is left open makes NCCL queue all later calls of the thread in
// silence.

/// On one thread's stack only.
class NcclGroup {
 public:
  explicit NcclGroup(const NcclLibrary& library) : library_(library) { note(library_->group_start()); }
  NcclGroup& operator=(NcclGroup&&) = delete;
  ~NcclGroup() {
    if (!ended_) end();
  }

  /// For each call within; the first error counts.
  void note(ncclResult_t result) noexcept {
    if (result_ == ncclSuccess && result != ncclInProgress) result_ = result;
  }
  bool failed() const noexcept { return result_ != ncclSuccess; }
  /// ncclInProgress: what was called reaches its streams later.
  ncclResult_t end() noexcept {
    ended_ = true;
    const ncclResult_t result = library_->group_end();
    return failed() ? result_ : result;
  }

 private:
  const NcclLibrary& library_;
  ncclResult_t result_ = ncclSuccess;
  bool ended_ = false;
};

/// Where operations run.
struct CallPlace {
  ncclComm_t comm = nullptr;
  int rank = 0;
  int size = 1;
  void* scratch = nullptr;  ///< one byte of device memory, for barriers
  cudaStream_t stream = nullptr;
};

/// Within a group, unless it has failed. Tags of transfers mean nothing to NCCL: those between two ranks match in the
/// order of the calls.
void call(const NcclLibrary& library, NcclGroup& group, const CallPlace& place, const Operation& operation) noexcept;

}  // namespace ddp::collectives::nccl
