// Copies of a job's last checkpoint in the memory of its nodes, which outlive the ranks: a restart reads no file
// system. ddprun makes the folder that holds them, and removes it with the job.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ddp/broadcast_state.hpp>
#include <ddp/checkpoint.hpp>
#include <ddp/deadline.hpp>
#include <ddp/process_group.hpp>

#include "training/checkpoint_folder.hpp"
#include "training/checkpoint_manifest.hpp"

namespace ddp::training {

/// Where this rank's node keeps copies: the same text for all ranks of the node, and for no others. Empty: nowhere.
std::string place_of_copies();

/// Collective. Keeps a copy of a save whose files are written and which is not published: after it, no node has an
/// older one. A node keeps what rank 0 has saved if its own tensors are the same; what each rank has saved is kept if
/// all ranks can. A node that cannot is one line, and no Error.
/// @param folder of the Checkpoints @param places of all ranks
void keep_copies(ProcessGroup& group, Deadline deadline, const std::string& folder, const CheckpointManifest& manifest,
                 const std::vector<std::string>& places, std::span<const NamedTensor> tensors, std::string_view extra);

/// Collective. Restores the newest copy, or that of @p step, that any node holds complete; of shards, that all ranks'
/// nodes hold. Nothing, on all ranks, where there is none, or it cannot be used, which is one line.
std::optional<Restored> restore_copies(ProcessGroup& group, const std::string& folder,
                                       std::span<const NamedTensor> tensors, std::optional<std::int64_t> step,
                                       Deadline deadline);

// A checkpoint of which all ranks know the manifest is brought into their tensors, from whatever folder has its files.

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
