// NCCL, opened on demand: nothing links it, so one build serves machines with any NCCL from 2.18 on, and with none.
#pragma once

#include <climits>
#include <cstddef>
#include <string>

#include "base/library_search.hpp"

// ---- NCCL's binary interface, of 2.18 to 2.32 alike, as far as the project uses it. Declared here after nccl.h, so
// that builds need neither NCCL (300 MB) nor the CUDA runtime's headers that nccl.h includes; tests compare every line
// with the nccl.h of an installed NCCL. Names are NCCL's; what they mean is in its API reference.

// Declared as NCCL and CUDA do, in the global namespace; a cudaStream_t is the driver's CUstream.
struct ncclComm;
struct ncclWindow_vidmem;
struct CUstream_st;

namespace ddp::collectives::nccl {

using ncclComm_t = ::ncclComm*;
using ncclWindow_t = ::ncclWindow_vidmem*;
using cudaStream_t = ::CUstream_st*;

inline constexpr int kUniqueIdBytes = 128;  // NCCL_UNIQUE_ID_BYTES
struct ncclUniqueId {
  char internal[kUniqueIdBytes];  // NOLINT(*-avoid-c-arrays): C's layout and calling convention
};

enum ncclResult_t : unsigned {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
  ncclTimeout = 8,  ///< 2.30
};

enum ncclDataType_t : unsigned {
  ncclInt8 = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclFloat32 = 7,
  ncclFloat64 = 8,
  ncclBfloat16 = 9,
  ncclFloat8e4m3 = 10,  ///< 2.24
  ncclFloat8e5m2 = 11,  ///< 2.24
};

/// Values from ncclNumOps on are made by ncclRedOpCreatePreMulSum.
enum ncclRedOp_t : unsigned { ncclSum = 0, ncclProd = 1, ncclMax = 2, ncclMin = 3, ncclAvg = 4, ncclNumOps = 5 };

enum ncclScalarResidence_t : unsigned { ncclScalarDevice = 0, ncclScalarHostImmediate = 1 };

inline constexpr int kUndefinedInt = INT_MIN;   // NCCL_CONFIG_UNDEF_INT
inline constexpr int kSplitNoColor = -1;        // NCCL_SPLIT_NOCOLOR
inline constexpr int kShrinkDefault = 0;        // NCCL_SHRINK_DEFAULT
inline constexpr int kShrinkAbort = 1;          // NCCL_SHRINK_ABORT
inline constexpr int kRevokeDefault = 0;        // NCCL_REVOKE_DEFAULT
inline constexpr int kWindowDefault = 0;        // NCCL_WIN_DEFAULT
inline constexpr int kWindowSymmetric = 1;      // NCCL_WIN_COLL_SYMMETRIC
inline constexpr unsigned kMagic = 0xcafebeef;  // NCCL_API_MAGIC

/// NCCL's code of a version: 21805 is 2.18.5 (NCCL_VERSION, from 2.9 on).
constexpr int version_code(int major, int minor, int patch) { return major * 10'000 + minor * 100 + patch; }

inline constexpr int kOldestVersion = version_code(2, 18, 0);
/// The one whose ncclConfig_t is declared here.
inline constexpr int kConfigVersion = version_code(2, 30, 7);

/// New versions of NCCL only append to it (or fill padding: trafficClass). A library copies as many bytes as it knows,
/// ignores fields that are younger than `version`, and sets its own defaults for those that lie beyond `size`
/// (parseCommConfig in NCCL's src/init.cc, the same in 2.18 to 2.32). So one declaration serves all.
/// Start from NcclLibrary::config().
struct ncclConfig_t {
  std::size_t size;
  unsigned magic;
  unsigned version;
  int blocking;             ///< 0: calls return ncclInProgress
  int cgaClusterSize;       // NOLINT(*-identifier-naming): NCCL's names
  int minCTAs;              ///< never without maxCTAs: NCCL compares the two
  int maxCTAs;              // NOLINT(*-identifier-naming)
  const char* netName;      ///< copied by NCCL
  int splitShare;           // NOLINT(*-identifier-naming)
  int trafficClass;         ///< 2.26
  const char* commName;     ///< 2.27; NCCL keeps the pointer, not a copy
  int collnetEnable;        ///< 2.27
  int CTAPolicy;            ///< 2.27
  int shrinkShare;          ///< 2.27
  int nvlsCTAs;             ///< 2.27
  int nChannelsPerNetPeer;  ///< 2.28
  int nvlinkCentricSched;   ///< 2.28
  int graphUsageMode;       ///< 2.29
  int numRmaCtx;            ///< 2.29
  int maxP2pPeers;          ///< 2.30
  int graphStreamOrdering;  ///< 2.30.5
};

// ---- The functions of an NCCL library, as a table: called through it, so that nothing links NCCL.

/// From any thread, as NCCL allows: calls on one communicator one at a time, except comm_abort and
/// comm_get_async_error.
struct NcclFunctions {
  // In every version from 2.18 on: never null.
  ncclResult_t (*get_version)(int* version);
  ncclResult_t (*get_unique_id)(ncclUniqueId* id);
  const char* (*get_error_string)(ncclResult_t result);
  const char* (*get_last_error)(ncclComm_t comm);
  ncclResult_t (*comm_init_rank_config)(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config);
  ncclResult_t (*comm_split)(ncclComm_t comm, int color, int key, ncclComm_t* child, ncclConfig_t* config);
  ncclResult_t (*comm_finalize)(ncclComm_t comm);
  ncclResult_t (*comm_destroy)(ncclComm_t comm);
  ncclResult_t (*comm_abort)(ncclComm_t comm);
  ncclResult_t (*comm_get_async_error)(ncclComm_t comm, ncclResult_t* error);
  ncclResult_t (*comm_count)(ncclComm_t comm, int* size);
  ncclResult_t (*comm_cu_device)(ncclComm_t comm, int* device);
  ncclResult_t (*comm_user_rank)(ncclComm_t comm, int* rank);
  ncclResult_t (*red_op_create_pre_mul_sum)(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                            ncclScalarResidence_t residence, ncclComm_t comm);
  ncclResult_t (*red_op_destroy)(ncclRedOp_t op, ncclComm_t comm);
  ncclResult_t (*all_reduce)(const void* send, void* receive, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                             ncclComm_t comm, cudaStream_t stream);
  ncclResult_t (*reduce)(const void* send, void* receive, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                         int root, ncclComm_t comm, cudaStream_t stream);
  ncclResult_t (*broadcast)(const void* send, void* receive, std::size_t count, ncclDataType_t type, int root,
                            ncclComm_t comm, cudaStream_t stream);
  /// @p count and the next: of one rank's part.
  ncclResult_t (*all_gather)(const void* send, void* receive, std::size_t count, ncclDataType_t type, ncclComm_t comm,
                             cudaStream_t stream);
  ncclResult_t (*reduce_scatter)(const void* send, void* receive, std::size_t count, ncclDataType_t type,
                                 ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream);
  ncclResult_t (*send)(const void* buffer, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                       cudaStream_t stream);
  ncclResult_t (*receive)(void* buffer, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                          cudaStream_t stream);
  ncclResult_t (*group_start)();
  ncclResult_t (*group_end)();

  // Null where the library has them not; the version that brought them.
  ncclResult_t (*mem_alloc)(void** memory, std::size_t bytes);                                     ///< 2.19
  ncclResult_t (*mem_free)(void* memory);                                                          ///< 2.19
  ncclResult_t (*comm_register)(ncclComm_t comm, void* buffer, std::size_t bytes, void** handle);  ///< 2.19
  ncclResult_t (*comm_deregister)(ncclComm_t comm, void* handle);                                  ///< 2.19
  ncclResult_t (*comm_init_rank_scalable)(ncclComm_t* comm, int size, int rank, int id_count, ncclUniqueId* ids,
                                          ncclConfig_t* config);  ///< 2.23
  ncclResult_t (*comm_shrink)(ncclComm_t comm, int* excluded, int excluded_count, ncclComm_t* child,
                              ncclConfig_t* config, int flags);  ///< 2.27
  ncclResult_t (*comm_window_register)(ncclComm_t comm, void* buffer, std::size_t bytes, ncclWindow_t* window,
                                       int flags);                               ///< 2.27
  ncclResult_t (*comm_window_deregister)(ncclComm_t comm, ncclWindow_t window);  ///< 2.27
  ncclResult_t (*all_to_all)(const void* send, void* receive, std::size_t count, ncclDataType_t type, ncclComm_t comm,
                             cudaStream_t stream);  ///< 2.28
  ncclResult_t (*gather)(const void* send, void* receive, std::size_t count, ncclDataType_t type, int root,
                         ncclComm_t comm, cudaStream_t stream);  ///< 2.28
  ncclResult_t (*scatter)(const void* send, void* receive, std::size_t count, ncclDataType_t type, int root,
                          ncclComm_t comm, cudaStream_t stream);          ///< 2.28
  ncclResult_t (*comm_revoke)(ncclComm_t comm, int flags);                ///< 2.29
  ncclResult_t (*comm_get_unique_id)(ncclComm_t comm, ncclUniqueId* id);  ///< 2.29
  ncclResult_t (*comm_grow)(ncclComm_t comm, int size, const ncclUniqueId* id, int rank, ncclComm_t* grown,
                            ncclConfig_t* config);  ///< 2.29
};

/// Which member has which of NCCL's names. @p visit is called as visit(&NcclFunctions::member, "ncclName", since):
/// the version's code for functions that may be missing, else 0.
template <class Visit>
void each_function(Visit&& visit) {
  using F = NcclFunctions;
  visit(&F::get_version, "ncclGetVersion", 0);
  visit(&F::get_unique_id, "ncclGetUniqueId", 0);
  visit(&F::get_error_string, "ncclGetErrorString", 0);
  visit(&F::get_last_error, "ncclGetLastError", 0);
  visit(&F::comm_init_rank_config, "ncclCommInitRankConfig", 0);
  visit(&F::comm_split, "ncclCommSplit", 0);
  visit(&F::comm_finalize, "ncclCommFinalize", 0);
  visit(&F::comm_destroy, "ncclCommDestroy", 0);
  visit(&F::comm_abort, "ncclCommAbort", 0);
  visit(&F::comm_get_async_error, "ncclCommGetAsyncError", 0);
  visit(&F::comm_count, "ncclCommCount", 0);
  visit(&F::comm_cu_device, "ncclCommCuDevice", 0);
  visit(&F::comm_user_rank, "ncclCommUserRank", 0);
  visit(&F::red_op_create_pre_mul_sum, "ncclRedOpCreatePreMulSum", 0);
  visit(&F::red_op_destroy, "ncclRedOpDestroy", 0);
  visit(&F::all_reduce, "ncclAllReduce", 0);
  visit(&F::reduce, "ncclReduce", 0);
  visit(&F::broadcast, "ncclBroadcast", 0);
  visit(&F::all_gather, "ncclAllGather", 0);
  visit(&F::reduce_scatter, "ncclReduceScatter", 0);
  visit(&F::send, "ncclSend", 0);
  visit(&F::receive, "ncclRecv", 0);
  visit(&F::group_start, "ncclGroupStart", 0);
  visit(&F::group_end, "ncclGroupEnd", 0);
  visit(&F::mem_alloc, "ncclMemAlloc", version_code(2, 19, 1));
  visit(&F::mem_free, "ncclMemFree", version_code(2, 19, 1));
  visit(&F::comm_register, "ncclCommRegister", version_code(2, 19, 1));
  visit(&F::comm_deregister, "ncclCommDeregister", version_code(2, 19, 1));
  visit(&F::comm_init_rank_scalable, "ncclCommInitRankScalable", version_code(2, 23, 4));
  visit(&F::comm_shrink, "ncclCommShrink", version_code(2, 27, 3));
  visit(&F::comm_window_register, "ncclCommWindowRegister", version_code(2, 27, 3));
  visit(&F::comm_window_deregister, "ncclCommWindowDeregister", version_code(2, 27, 3));
  visit(&F::all_to_all, "ncclAlltoAll", version_code(2, 28, 3));
  visit(&F::gather, "ncclGather", version_code(2, 28, 3));
  visit(&F::scatter, "ncclScatter", version_code(2, 28, 3));
  visit(&F::comm_revoke, "ncclCommRevoke", version_code(2, 29, 2));
  visit(&F::comm_get_unique_id, "ncclCommGetUniqueId", version_code(2, 29, 2));
  visit(&F::comm_grow, "ncclCommGrow", version_code(2, 29, 2));
}

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
