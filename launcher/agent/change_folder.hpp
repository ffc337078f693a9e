// Where the ranks of a node learn that other nodes are to take part, and ask for the next generation: a folder that
// DDP_CHANGE_DIR names. Files work for any program and shell, and wherever the PMIx server's files do.
#pragma once

#include <string>

namespace ddp::launcher {

/// Of one attempt. Move-only; removes the folder on destruction, as far as that works.
class ChangeFolder {
 public:
  /// Below @p scratch, which only the user may enter. Throws Error(system).
  ChangeFolder(const std::string& scratch, int epoch);
  ChangeFolder(ChangeFolder&& other) noexcept;
  ChangeFolder& operator=(ChangeFolder&&) = delete;
  ~ChangeFolder();

  const std::string& path() const { return path_; }
  /// Makes the file "pending", or removes it. Throws Error(system).
  void announce(bool pending) const;
  /// Whether the file "restart.RANK" is there, which rank @p rank makes before it exits with 0 for the next generation.
  bool wants_restart(int rank) const;

 private:
  std::string path_;
};

}  // namespace ddp::launcher
