// What NCCL is called for each operation of a group.
#pragma once

#include <ddp/operation.hpp>

#include "collectives/nccl/nccl_group.hpp"

namespace ddp::collectives::nccl {

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
