// A checkpoint of which all ranks know the manifest is brought into their tensors, from whatever folder has its files.
#pragma once

#include <span>

#include <ddp/broadcast_state.hpp>
#include <ddp/checkpoint.hpp>
#include <ddp/deadline.hpp>
#include <ddp/process_group.hpp>

#include "training/checkpoint_folder.hpp"

namespace ddp::training {

/// The file of @p rank; where rank 0 has saved for all, there is only that of 0.
ShardOrigin origin_of(const CheckpointManifest& manifest, int rank);

struct CheckpointSource {
  CheckpointManifest manifest;
  int rank = 0;  ///< that reads what rank 0 has saved for all
};

/// Collective. Verifies, then reads, as Checkpoints::restore() does.
Restored restore_from(ProcessGroup& group, const CheckpointFolder& folder, const CheckpointSource& source,
                      std::span<const NamedTensor> tensors, Deadline deadline);

}  // namespace ddp::training
