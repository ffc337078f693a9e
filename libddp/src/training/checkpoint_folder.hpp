// The folder of a job's checkpoints: what its files are called, which checkpoints are complete, and which go.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "training/shard_file.hpp"

namespace ddp::training {

/// A view of the file system; nothing is kept. Throws Error(system), unless it says otherwise.
class CheckpointFolder {
 public:
  explicit CheckpointFolder(std::string path) : path_(std::move(path)) {}

  std::string step_path(std::int64_t step) const;
  std::string manifest_path(std::int64_t step) const;
  std::string shard_path(const ShardOrigin& origin) const;

  /// The names of folders above that it makes are on the disk when it returns.
  void make(std::int64_t step) const;
  /// Brings names to the disk: those of steps, and those in a step's folder.
  void sync(std::int64_t step) const;
  /// The steps whose manifest is there, the newest first; none if there is no folder.
  std::vector<std::int64_t> complete_steps() const;
  /// Of a complete step. Throws Error(protocol) for a damaged one, Error(mismatch) for that of another step.
  CheckpointManifest read_manifest(std::int64_t step) const;
  /// Before any rank writes for the save of @p step: removes what saves that did not end have left, also beside
  /// complete checkpoints. What cannot be removed is logged.
  void clear_unfinished(std::int64_t step) const;
  /// After a save: removes complete checkpoints but the @p keep newest (0: none) and this one, and the files of earlier
  /// saves of this step. What cannot be removed is logged.
  void clear_old(int keep, const CheckpointManifest& saved) const;

 private:
  std::vector<std::int64_t> steps() const;
  bool is_complete(std::int64_t step) const;
  void remove_unfinished_beside(std::int64_t complete) const;
  void remove(std::int64_t step) const;

  std::string path_;
};

}  // namespace ddp::training
