// Checkpoints that exist whole or not at all, and resuming from the newest. Guide: docs/reference/training.md.
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
  int keep = 3;                        ///< of the newest checkpoints; older ones are removed by save. 0: all
  std::chrono::seconds timeout{1800};  ///< of a save or restore, the slowest rank's files included
};

/// What a checkpoint says besides its tensors.
struct Restored {
  std::int64_t step = 0;  ///< of which it is
  std::string extra{};    ///< what save() was given
};

/// The checkpoints in a folder, which all ranks see and one job at a time writes to. Each is a folder, `step-N`, of one
/// file a rank, or rank 0's alone, and a manifest with their sizes and checksums (BLAKE2b, 256 bits), which rank 0
/// writes when all files are on the disk. Without it there is no checkpoint, so whatever ends a save in its midst (a
/// killed rank, a full disk) leaves previous checkpoints as they were, and the next save removes the remains.
///
/// The first save makes the job the owner of the folder (file "owner"), until its last Checkpoints of that folder goes,
/// or rank 0's process ends. While another job is the owner, save throws Error(conflict) with the names of both; where
/// only signs of life show whether that one has ended, it waits for them for up to a minute.
///
/// save and restore are collective and block: every rank comes back when all are done, or throws the same Error, which
/// names the ranks that failed and their first one's reason. `system` for a file that cannot be written or read,
/// `protocol` for a truncated or damaged one, `mismatch` for one of another save, step, rank, number of ranks or model,
/// invalid_argument for wrong arguments on any rank, timeout or peer_lost where ranks do not take part. Tensors are CPU
/// tensors in the caller's memory, named once each. Not thread-safe.
class Checkpoints {
 public:
  /// Not collective; the folder is made by the first save. Throws Error(invalid_argument) for an empty name, negative
  /// keep or a timeout that is not positive.
  Checkpoints(ProcessGroup group, std::string folder, CheckpointOptions options = {});

  /// Rank 0's tensors and @p extra (any bytes: the sampler's state, settings), which stand for all ranks'. What the
  /// others give is not looked at. A checkpoint of the same step is replaced.
  /// @param step of the training, >= 0, equal on all ranks.
  void save(std::int64_t step, std::span<const NamedTensor> tensors, std::string_view extra = {});
  /// Each rank's own, as of optimizers that are split among ranks: for as many ranks.
  void save_sharded(std::int64_t step, std::span<const NamedTensor> tensors, std::string_view extra = {});

  /// Reads the newest checkpoint, or that of @p step, into @p tensors: those that were saved, in the same order, with
  /// their shapes and types. Rank 0's are brought to all ranks. First everything is verified on all ranks: where that
  /// throws, no tensor has been touched, and no older checkpoint is taken instead. Only checkpoints with missing files
  /// are skipped, and rank 0 logs which. Costs reading the files twice. Nothing if the folder has none. Throws
  /// not_found if there is none of @p step.
  std::optional<Restored> restore(std::span<const NamedTensor> tensors, std::optional<std::int64_t> step = {});

 private:
  void save(std::int64_t step, std::span<const NamedTensor> tensors, std::string_view extra, bool sharded);

  ProcessGroup group_;
  std::string folder_;
  CheckpointOptions options_;
  std::shared_ptr<training::FolderOwner> owner_;  ///< on rank 0, from the first save on
};

}  // namespace ddp
