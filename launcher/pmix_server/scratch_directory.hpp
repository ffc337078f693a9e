// A private folder for the files of the PMIx server; base/left_scratch.hpp removes those that killed jobs left.
#pragma once

#include <string>

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
/// not whole any more when this process is killed is one for base::remove_left_scratch().
void remove_scratch(const std::string& path) noexcept;

}  // namespace ddp::launcher
