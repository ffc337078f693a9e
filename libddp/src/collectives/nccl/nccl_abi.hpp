// NCCL's binary interface, of 2.18 to 2.32 alike, as far as the project uses it. Declared here after nccl.h, so that
// builds need neither NCCL (300 MB) nor the CUDA runtime's headers that nccl.h includes; tests compare every line with
// the nccl.h of an installed NCCL. Names are NCCL's; what they mean is in its API reference.
#pragma once

#include <climits>
#include <cstddef>

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

}  // namespace ddp::collectives::nccl
