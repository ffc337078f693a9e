// The functions of an NCCL library, as a table: called through it, so that nothing links NCCL.
#pragma once

#include "collectives/nccl/nccl_abi.hpp"

namespace ddp::collectives::nccl {

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

}  // namespace ddp::collectives::nccl
