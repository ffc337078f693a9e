// Checkpoints that are complete or absent, and resuming from the newest. Guide: docs/reference/training.md.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include <ddp/broadcast_state.hpp>
#include <ddp/process_group.hpp>

namespace ddp {

namespace training {
class FolderOwner;
}

/// How Checkpoints are kept.
struct CheckpointOptions {
  int keep = 3;                        ///< newest checkpoints to keep; save removes older ones. 0: all
  std::chrono::seconds timeout{1800};  ///< of a save or restore, including the slowest rank's files
  /// Nodes also keep the last save in memory, so that a restart by ddprun reads no file. Equal on all ranks.
  bool memory = false;
};

/// What a checkpoint contains besides its tensors.
struct Restored {
  std::int64_t step = 0;  ///< the training step that it was saved at
  std::string extra{};    ///< what save() was given
};

/// The checkpoints in a folder that all ranks see and one job at a time writes to. Each is a folder, `step-N`, with one
/// file per rank, or rank 0's alone, and a manifest with their sizes and checksums (BLAKE2b, 256 bits), which rank 0
/// writes once all files are on disk. Without a manifest it is not a checkpoint: whatever interrupts a save (a killed
/// rank, a full disk) leaves previous checkpoints intact, and the next save removes the remains.
///
/// The first save makes the job the owner of the folder (file "owner") until its last Checkpoints of that folder is
/// destroyed or rank 0's process ends. While another job owns it, save throws Error(conflict) that names both jobs; if
/// only signs of life can show whether the other one has ended, save waits up to a minute for them.
///
/// save and restore are collective and block: every rank returns when all are done, or throws the same Error, which
/// names the ranks that failed and the reason of the first. `system`: a file cannot be written or read; `protocol`: a
/// file is truncated or damaged; `mismatch`: a file is of another save, step, rank, number of ranks or model;
/// invalid_argument: wrong arguments on any rank; timeout, peer_lost: ranks do not take part. Tensors are CPU tensors
/// in the caller's memory, each with a name of its own. Not thread-safe.
class Checkpoints {
 public:
  /// Not collective; the first save creates the folder. Throws Error(invalid_argument) for an empty name, a negative
  /// keep or a timeout that is not positive.
  Checkpoints(ProcessGroup group, std::string folder, CheckpointOptions options = {});

  /// Saves rank 0's tensors and @p extra (any bytes: the sampler's state, settings) for all ranks; those of other ranks
  /// are ignored. Replaces a checkpoint of the same step.
  /// @param step training step, >= 0, equal on all ranks.
  void save(std::int64_t step, std::span<const NamedTensor> tensors, std::string_view extra = {});
  /// Saves each rank's own tensors, such as those of sharded optimizers: equally many ranks must restore them.
  void save_sharded(std::int64_t step, std::span<const NamedTensor> tensors, std::string_view extra = {});

  /// Reads the newest checkpoint, or that of @p step, into @p tensors: those that were saved, in the same order, with
  /// their shapes and types. What save() wrote goes to all ranks. All ranks verify everything first: if that throws, no
  /// tensor has changed, and no older checkpoint is tried. Only checkpoints with missing files are skipped, and rank 0
  /// logs which. Reads the files twice. @return nothing if the folder has no checkpoint.
  /// Throws not_found if there is none of @p step.
  /// With CheckpointOptions::memory, the newest save that any node holds complete comes first, or that of @p step; of
  /// shards, one that each rank's node holds. The folder is read only where there is none.
  std::optional<Restored> restore(std::span<const NamedTensor> tensors, std::optional<std::int64_t> step = {});

 private:
  void save(std::int64_t step, std::span<const NamedTensor> tensors, std::string_view extra, bool sharded);

  ProcessGroup group_;
  std::string folder_;
  CheckpointOptions options_;
  std::shared_ptr<training::FolderOwner> owner_;  ///< on rank 0, from the first save on
};

}  // namespace ddp
