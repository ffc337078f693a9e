// The declarations of nccl_library.hpp and nccl_library.hpp: their layout, and, where a real nccl.h was found, every
// type, value, field and function of it that the project uses.
#include "collectives/nccl/nccl_library.hpp"

#include <type_traits>

#ifdef TEST_HAS_NCCL_H
#include <nccl.h>
#endif

namespace ddp::collectives::nccl {
namespace {

// x86-64 and aarch64 alike. What every version since 2.17 has, ends with splitShare.
static_assert(offsetof(ncclConfig_t, blocking) == 16);
static_assert(offsetof(ncclConfig_t, netName) == 32);
static_assert(offsetof(ncclConfig_t, trafficClass) == 44);
static_assert(offsetof(ncclConfig_t, commName) == 48);
static_assert(offsetof(ncclConfig_t, nChannelsPerNetPeer) == 72);
static_assert(offsetof(ncclConfig_t, graphStreamOrdering) == 92);
static_assert(sizeof(ncclConfig_t) == 96);
static_assert(sizeof(ncclUniqueId) == 128 && sizeof(ncclResult_t) == 4 && sizeof(ncclRedOp_t) == 4);

#ifdef TEST_HAS_NCCL_H

template <class T>
concept Complete = requires {
  sizeof(T);
};

/// Whether two types are the same to a caller: equal, both enums of one size, structs of one size or opaque, pointers
/// to such.
template <class A, class B>
constexpr bool alike() {
  if constexpr (std::is_same_v<A, B>) {
    return true;
  } else if constexpr (std::is_pointer_v<A> && std::is_pointer_v<B>) {
    using To = std::remove_pointer_t<A>;
    using Other = std::remove_pointer_t<B>;
    return std::is_const_v<To> == std::is_const_v<Other> && alike<std::remove_cv_t<To>, std::remove_cv_t<Other>>();
  } else if constexpr (std::is_enum_v<A> && std::is_enum_v<B>) {
    return sizeof(A) == sizeof(B);
  } else if constexpr (!Complete<A> && !Complete<B>) {
    return std::is_class_v<A> && std::is_class_v<B>;
  } else {
    // A config of an older header is shorter, and passed by pointer.
    return std::is_same_v<A, ncclConfig_t> ? std::is_same_v<B, ::ncclConfig_t>
                                           : std::is_class_v<A> && std::is_class_v<B> && sizeof(A) == sizeof(B);
  }
}
template <class ResultA, class... A, class ResultB, class... B>
constexpr bool same_call(ResultA (*)(A...), ResultB (*)(B...)) {
  if constexpr (sizeof...(A) == sizeof...(B)) {
    return alike<ResultA, ResultB>() && (alike<A, B>() && ...);
  } else {
    return false;
  }
}
#define EXPECT_CALL_OF(member, function) \
  static_assert(same_call(decltype(NcclFunctions::member)(nullptr), decltype (&::function)(nullptr)))
EXPECT_CALL_OF(get_version, ncclGetVersion);
EXPECT_CALL_OF(get_unique_id, ncclGetUniqueId);
EXPECT_CALL_OF(get_error_string, ncclGetErrorString);
EXPECT_CALL_OF(get_last_error, ncclGetLastError);
EXPECT_CALL_OF(comm_init_rank_config, ncclCommInitRankConfig);
EXPECT_CALL_OF(comm_split, ncclCommSplit);
EXPECT_CALL_OF(comm_finalize, ncclCommFinalize);
EXPECT_CALL_OF(comm_destroy, ncclCommDestroy);
EXPECT_CALL_OF(comm_abort, ncclCommAbort);
EXPECT_CALL_OF(comm_get_async_error, ncclCommGetAsyncError);
EXPECT_CALL_OF(comm_count, ncclCommCount);
EXPECT_CALL_OF(comm_cu_device, ncclCommCuDevice);
EXPECT_CALL_OF(comm_user_rank, ncclCommUserRank);
EXPECT_CALL_OF(red_op_create_pre_mul_sum, ncclRedOpCreatePreMulSum);
EXPECT_CALL_OF(red_op_destroy, ncclRedOpDestroy);
EXPECT_CALL_OF(all_reduce, ncclAllReduce);
EXPECT_CALL_OF(reduce, ncclReduce);
EXPECT_CALL_OF(broadcast, ncclBroadcast);
EXPECT_CALL_OF(all_gather, ncclAllGather);
EXPECT_CALL_OF(reduce_scatter, ncclReduceScatter);
EXPECT_CALL_OF(send, ncclSend);
EXPECT_CALL_OF(receive, ncclRecv);
EXPECT_CALL_OF(group_start, ncclGroupStart);
EXPECT_CALL_OF(group_end, ncclGroupEnd);
static_assert(ncclInProgress == static_cast<int>(::ncclInProgress) &&
              ncclRemoteError == static_cast<int>(::ncclRemoteError));
static_assert(ncclBfloat16 == static_cast<int>(::ncclFloat64) + 1 && ncclUint64 == static_cast<int>(::ncclUint64));
static_assert(ncclAvg == static_cast<int>(::ncclAvg) && ncclNumOps == static_cast<int>(::ncclNumOps));
static_assert(ncclScalarHostImmediate == static_cast<int>(::ncclScalarHostImmediate));
static_assert(kUndefinedInt == NCCL_CONFIG_UNDEF_INT && kSplitNoColor == NCCL_SPLIT_NOCOLOR);
static_assert(kOldestVersion == NCCL_VERSION(2, 18, 0) && kConfigVersion == NCCL_VERSION(2, 30, 7));
#define EXPECT_FIELD(field) static_assert(offsetof(ncclConfig_t, field) == offsetof(::ncclConfig_t, field))
EXPECT_FIELD(size);
EXPECT_FIELD(magic);
EXPECT_FIELD(version);
EXPECT_FIELD(blocking);
EXPECT_FIELD(maxCTAs);
EXPECT_FIELD(netName);
EXPECT_FIELD(splitShare);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 1)
EXPECT_CALL_OF(mem_alloc, ncclMemAlloc);
EXPECT_CALL_OF(mem_free, ncclMemFree);
EXPECT_CALL_OF(comm_register, ncclCommRegister);
EXPECT_CALL_OF(comm_deregister, ncclCommDeregister);
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 23, 4)
EXPECT_CALL_OF(comm_init_rank_scalable, ncclCommInitRankScalable);
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 24, 3)
static_assert(ncclFloat8e4m3 == static_cast<int>(::ncclFloat8e4m3) &&
              ncclFloat8e5m2 == static_cast<int>(::ncclFloat8e5m2));
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 3)
EXPECT_CALL_OF(comm_shrink, ncclCommShrink);
EXPECT_CALL_OF(comm_window_register, ncclCommWindowRegister);
EXPECT_CALL_OF(comm_window_deregister, ncclCommWindowDeregister);
EXPECT_FIELD(trafficClass);
EXPECT_FIELD(commName);
EXPECT_FIELD(nvlsCTAs);
static_assert(kShrinkAbort == NCCL_SHRINK_ABORT && kWindowSymmetric == NCCL_WIN_COLL_SYMMETRIC);
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 3)
EXPECT_CALL_OF(all_to_all, ncclAlltoAll);
EXPECT_CALL_OF(gather, ncclGather);
EXPECT_CALL_OF(scatter, ncclScatter);
EXPECT_FIELD(nvlinkCentricSched);
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 29, 2)
EXPECT_CALL_OF(comm_revoke, ncclCommRevoke);
EXPECT_CALL_OF(comm_get_unique_id, ncclCommGetUniqueId);
EXPECT_CALL_OF(comm_grow, ncclCommGrow);
EXPECT_FIELD(numRmaCtx);
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 30, 5)
EXPECT_FIELD(graphStreamOrdering);
#endif

TEST(NcclAbi, InitializerIsAsOurs) {
  const ::ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  EXPECT_EQ(theirs.magic, kMagic);
  EXPECT_EQ(theirs.blocking, kUndefinedInt);
  EXPECT_EQ(theirs.netName, nullptr);
}

#else

TEST(NcclAbi, ComparedWithNcclH) { GTEST_SKIP() << "no nccl.h: configure with -DDDP_TEST_NCCL=.../lib/libnccl.so.2"; }

#endif

}  // namespace
}  // namespace ddp::collectives::nccl
