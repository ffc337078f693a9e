// PMIx's library (libpmix.so.2), opened when a rank first uses PMIx: nothing of libddp.so links it, so programs that
// never use PMIx map neither it nor what it needs, and an MPI that brings its own PMIx finds that one.
#pragma once

#include <pmix.h>

#include <string>

namespace ddp::kvs {

/// X(member, function). All are in PMIx 4.2, the oldest that serves, and in all since. PMIx's macros must not be used
/// beside them: those of newer headers call functions that are not in this table.
#define DDP_PMIX_FUNCTIONS(X)          \
  X(init, PMIx_Init)                   \
  X(finalize, PMIx_Finalize)           \
  X(get_version, PMIx_Get_version)     \
  X(error_string, PMIx_Error_string)   \
  X(get, PMIx_Get)                     \
  X(get_nb, PMIx_Get_nb)               \
  X(put, PMIx_Put)                     \
  X(commit, PMIx_Commit)               \
  X(fence_nb, PMIx_Fence_nb)           \
  X(resolve_nodes, PMIx_Resolve_nodes) \
  X(info_load, PMIx_Info_load)         \
  X(value_destruct, PMIx_Value_destruct)

/// The table. Its functions are called as PMIx's own: pmix().put(scope, key, &value).
struct PmixFunctions {
#define DDP_PMIX_MEMBER(member, function) decltype(&(function)) member = nullptr;
  DDP_PMIX_FUNCTIONS(DDP_PMIX_MEMBER)
#undef DDP_PMIX_MEMBER
};

/// The opened library. Looked for in this order: a PMIx whose functions the program can see (ddprun's, an MPI's), the
/// libpmix.so.2 that the process has loaded, the loader's (LD_LIBRARY_PATH, the run path of libddp.so, the system's):
/// PMIx is one per process. Never closed. Immutable: any thread.
class PmixLibrary : public PmixFunctions {
 public:
  /// Throws Error(unavailable) that says what was tried and what is missing. @param name for tests
  explicit PmixLibrary(const std::string& name = "libpmix.so.2");

  const std::string& file() const noexcept { return file_; }  ///< where the loader found it

 private:
  std::string file_;
};

/// The process's PMIx, opened at the first call. Throws as the constructor does, then tries anew at the next call.
const PmixLibrary& pmix();

}  // namespace ddp::kvs
