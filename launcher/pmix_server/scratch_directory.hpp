// A private folder for the files of the PMIx server, and the removal of those that killed jobs left.
#pragma once

#include <string>

#include <ddp/deadline.hpp>

#include "base/unique_fd.hpp"

namespace ddp::launcher {

/// A new folder "ddprun.XXXXXX" of mode 0700, removed with its contents on destruction. Its file "lock" has the host's
/// name and is locked (flock(2)) while somebody uses the folder, so that others know when it was left. Move-only.
class ScratchDirectory {
 public:
  /// @param parent its folder, for example the value of TMPDIR. Throws Error(system) with its file system, also where
  /// there is no room for the files of a PMIx server.
  explicit ScratchDirectory(const std::string& parent);
  ScratchDirectory(ScratchDirectory&& other) noexcept;
  ScratchDirectory& operator=(ScratchDirectory&&) = delete;
  ~ScratchDirectory();

  const std::string& path() const { return path_; }

 private:
  bool lock();

  std::string path_;
  base::UniqueFd lock_;
};

/// For another process that uses the folder @p path: it is in use until the descriptor is closed. Empty where locks do
/// not work; nobody removes the folder then.
base::UniqueFd share_scratch(const std::string& path) noexcept;

/// Removes the folder @p path of a ScratchDirectory in another process, which cannot do it any more. A folder that is
/// not whole any more when this process is killed is one for remove_left_scratch().
void remove_scratch(const std::string& path) noexcept;

/// Removes what ScratchDirectory objects of this user on this host left in @p parent because their process was killed
/// together with all others that used the folder, as Slurm does at the end of a step. Begins no folder after
/// @p deadline. Follows no links.
void remove_left_scratch(const std::string& parent, Deadline deadline) noexcept;

}  // namespace ddp::launcher
