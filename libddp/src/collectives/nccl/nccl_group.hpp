// Calls of NCCL that start as one. A group that is left open makes NCCL queue all later calls of the thread in silence.
#pragma once

#include "collectives/nccl/nccl_library.hpp"

namespace ddp::collectives::nccl {

/// On one thread's stack only.
class NcclGroup {
 public:
  explicit NcclGroup(const NcclLibrary& library) : library_(library) { note(library_->group_start()); }
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;
  ~NcclGroup() {
    if (!ended_) end();
  }

  /// Of each call within; the first error counts.
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

}  // namespace ddp::collectives::nccl
