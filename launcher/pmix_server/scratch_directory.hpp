// A private folder for the files of the PMIx server.
#pragma once

#include <string>

namespace ddp::launcher {

/// A new folder of mode 0700 with a unique name, removed with its contents on destruction. Move-only.
class ScratchDirectory {
 public:
  /// @param parent its folder, for example the value of TMPDIR. Throws Error(system).
  explicit ScratchDirectory(const std::string& parent);
  ScratchDirectory(ScratchDirectory&& other) noexcept;
  ScratchDirectory& operator=(ScratchDirectory&&) = delete;
  ~ScratchDirectory();

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace ddp::launcher
