// A private folder for the files of the PMIx server.
#pragma once

#include <string>

namespace ddp::launcher {

/// A new folder of mode 0700 with a name of its own, removed with all that is in it when the object goes away.
/// Move-only.
class ScratchDirectory {
 public:
  /// @param parent where to make it, for example the value of TMPDIR. Throws Error(system) when that is impossible.
  explicit ScratchDirectory(const std::string& parent);
  ScratchDirectory(ScratchDirectory&& other) noexcept;
  ScratchDirectory& operator=(ScratchDirectory&&) = delete;
  ~ScratchDirectory();

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace ddp::launcher
