// The folder of a job's checkpoints: what its files are called, which checkpoints are complete, and which go.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "training/checkpoint_manifest.hpp"
#include "training/shard_file.hpp"

namespace ddp::training {

/// A file that a manifest names and that is not there as it says.
struct FileGap {
  int rank = 0;       ///< in the group that has saved it
  std::string cause;  ///< "'rank-1-of-2.0123456789abcdef' is not there"
  bool absent = false;
};

/// A view of the file system; nothing is kept. Throws Error(system), unless it says otherwise.
class CheckpointFolder {
 public:
  explicit CheckpointFolder(std::string path) : path_(std::move(path)) {}

  std::string step_path(std::int64_t step) const;
  std::string manifest_path(std::int64_t step) const;
  std::string shard_path(const ShardOrigin& origin) const;

  /// Make the folder, and a step's in it. The names of folders above are on the disk when they return.
  void make() const;
  void make(std::int64_t step) const;
  /// Brings names to the disk: those of steps, and those in a step's folder.
  void sync(std::int64_t step) const;
  /// The steps whose manifest is there, the newest first; none if there is no folder.
  std::vector<std::int64_t> complete_steps() const;
  /// For a complete step. Throws Error(protocol) for a damaged one, Error(mismatch) for that of another step.
  CheckpointManifest read_manifest(std::int64_t step) const;
  /// The first file that @p manifest names and that is not there, or has another size; nothing if it is whole.
  std::optional<FileGap> gap_of(const CheckpointManifest& manifest) const;

  /// Whether files of the save of this id are the caller's to remove, however new they are.
  using Inherits = std::function<bool(std::string_view save_id)>;
  /// Before any rank writes: removes what saves that did not end have left, also beside complete checkpoints: those
  /// that the caller inherits, and all that are older than a day. What cannot be removed is logged.
  void clear_unfinished(const Inherits& inherits) const;
  /// Writes the manifest, which makes the checkpoint: only over files that are there with their sizes, before and
  /// after. Then removes the files of the checkpoint of this step before.
  void publish(const CheckpointManifest& manifest, const Inherits& inherits) const;
  /// After a save: removes complete checkpoints but this one and those newer than the @p keep newest whole ones (0:
  /// none goes). What cannot be removed is logged.
  void clear_old(int keep, const CheckpointManifest& saved) const;

 private:
  std::vector<std::int64_t> steps() const;
  bool is_complete(std::int64_t step) const;
  bool is_whole(std::int64_t step) const;
  void remove_unfinished_beside(std::int64_t complete, const Inherits& inherits) const;
  void remove(std::int64_t step) const;

  std::string path_;
};

}  // namespace ddp::training
