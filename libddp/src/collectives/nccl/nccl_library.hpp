// NCCL, opened on demand: nothing links it, so one build serves machines with any NCCL from 2.18 on, and with none.
#pragma once

#include <string>

#include "base/library_search.hpp"
#include "collectives/nccl/nccl_functions.hpp"

namespace ddp::collectives::nccl {

/// An opened NCCL. Never closed: its threads live as long as the process. Immutable, so safe from any thread.
class NcclLibrary {
 public:
  /// The one of this process, opened at the first call that succeeds; from any thread. Reading it may take a second.
  /// Throws Error(unavailable): none found, or the one found is older than 2.18 or lacks functions; the cause lists
  /// what was tried, where.
  static const NcclLibrary& process();

  /// Opens the first of base::nccl_candidates(@p surroundings) that can be opened. Throws as process() does.
  explicit NcclLibrary(const base::NcclSurroundings& surroundings);

  const NcclFunctions& functions() const noexcept { return functions_; }
  const NcclFunctions* operator->() const noexcept { return &functions_; }
  /// Its file, by its whole path where that is known.
  const std::string& file() const noexcept { return file_; }
  /// Why it was chosen: "loaded already", "DDP_NCCL_LIBRARY", "the loader's".
  const std::string& found() const noexcept { return found_; }
  /// As NCCL codes it: 22703 is 2.27.3. What another rank's library has can be compared with it: NCCL refuses unequal
  /// ones, at the end of a bootstrap, on some ranks.
  int version() const noexcept { return version_; }

  /// NCCL_CONFIG_INITIALIZER for this library: everything undefined, so that NCCL decides. Younger fields than the
  /// library are ignored by it.
  ncclConfig_t config() const noexcept;

  /// What NCCL says of the last error: one line; empty if it says nothing. It is the last of the whole process, of any
  /// communicator (src/init.cc, ncclGetLastError), so read it right after the call. @p comm may be null.
  std::string last_error(ncclComm_t comm) const;

 private:
  NcclFunctions functions_{};
  std::string file_;
  std::string found_;
  int version_ = 0;
};

/// "2.27.3"
std::string version_text(int version);
/// By name and number, as messages have it: "ncclRemoteError (6)"
std::string to_string(ncclResult_t result);

}  // namespace ddp::collectives::nccl
