// CUDA's driver library (libcuda.so.1, a part of the driver), opened when first needed: nothing links it, so one build
// of libddp runs with CUDA 12, with CUDA 13 and without either.
#pragma once

#include <string>
#include <string_view>

#include <cuda.h>
#include <cudaTypedefs.h>

#include <ddp/error.hpp>

#include "base/env_table.hpp"

namespace ddp::cuda {

// ---- The functions of CUDA's driver API that libddp uses, as one table of pointers. Types are those of cudaTypedefs.h
// and symbols those of the binary interface, both with their version: what cuda.h's short names mean changes from
// release to release (cuStreamGetCaptureInfo, cuEventElapsedTime, cuCtxCreate), and drivers keep every old one.

/// X(member, type, symbol). All are in CUDA 12.0, the oldest driver that serves.
#define DDP_CUDA_FUNCTIONS(X)                                                                            \
  X(get_error_name, PFN_cuGetErrorName_v6000, "cuGetErrorName")                                          \
  X(get_error_string, PFN_cuGetErrorString_v6000, "cuGetErrorString")                                    \
  X(init, PFN_cuInit_v2000, "cuInit")                                                                    \
  X(driver_get_version, PFN_cuDriverGetVersion_v2020, "cuDriverGetVersion")                              \
  X(device_get_count, PFN_cuDeviceGetCount_v2000, "cuDeviceGetCount")                                    \
  X(device_get, PFN_cuDeviceGet_v2000, "cuDeviceGet")                                                    \
  X(device_get_name, PFN_cuDeviceGetName_v2000, "cuDeviceGetName")                                       \
  X(device_get_uuid, PFN_cuDeviceGetUuid_v11040, "cuDeviceGetUuid_v2")                                   \
  X(device_get_pci_bus_id, PFN_cuDeviceGetPCIBusId_v4010, "cuDeviceGetPCIBusId")                         \
  X(device_get_attribute, PFN_cuDeviceGetAttribute_v2000, "cuDeviceGetAttribute")                        \
  X(device_total_mem, PFN_cuDeviceTotalMem_v3020, "cuDeviceTotalMem_v2")                                 \
  X(device_primary_ctx_retain, PFN_cuDevicePrimaryCtxRetain_v7000, "cuDevicePrimaryCtxRetain")           \
  X(device_primary_ctx_release, PFN_cuDevicePrimaryCtxRelease_v11000, "cuDevicePrimaryCtxRelease_v2")    \
  X(ctx_get_current, PFN_cuCtxGetCurrent_v4000, "cuCtxGetCurrent")                                       \
  X(ctx_set_current, PFN_cuCtxSetCurrent_v4000, "cuCtxSetCurrent")                                       \
  X(ctx_push_current, PFN_cuCtxPushCurrent_v4000, "cuCtxPushCurrent_v2")                                 \
  X(ctx_pop_current, PFN_cuCtxPopCurrent_v4000, "cuCtxPopCurrent_v2")                                    \
  X(ctx_get_device, PFN_cuCtxGetDevice_v2000, "cuCtxGetDevice")                                          \
  X(ctx_synchronize, PFN_cuCtxSynchronize_v2000, "cuCtxSynchronize")                                     \
  X(ctx_get_stream_priority_range, PFN_cuCtxGetStreamPriorityRange_v5050, "cuCtxGetStreamPriorityRange") \
  X(stream_create_with_priority, PFN_cuStreamCreateWithPriority_v5050, "cuStreamCreateWithPriority")     \
  X(stream_destroy, PFN_cuStreamDestroy_v4000, "cuStreamDestroy_v2")                                     \
  X(stream_get_priority, PFN_cuStreamGetPriority_v5050, "cuStreamGetPriority")                           \
  X(stream_get_flags, PFN_cuStreamGetFlags_v5050, "cuStreamGetFlags")                                    \
  X(stream_get_ctx, PFN_cuStreamGetCtx_v9020, "cuStreamGetCtx")                                          \
  X(stream_wait_event, PFN_cuStreamWaitEvent_v3020, "cuStreamWaitEvent")                                 \
  X(stream_query, PFN_cuStreamQuery_v2000, "cuStreamQuery")                                              \
  X(stream_synchronize, PFN_cuStreamSynchronize_v2000, "cuStreamSynchronize")                            \
  X(stream_is_capturing, PFN_cuStreamIsCapturing_v10000, "cuStreamIsCapturing")                          \
  X(stream_get_capture_info, PFN_cuStreamGetCaptureInfo_v11030, "cuStreamGetCaptureInfo_v2")             \
  X(stream_begin_capture, PFN_cuStreamBeginCapture_v10010, "cuStreamBeginCapture_v2")                    \
  X(stream_end_capture, PFN_cuStreamEndCapture_v10000, "cuStreamEndCapture")                             \
  X(thread_exchange_stream_capture_mode, PFN_cuThreadExchangeStreamCaptureMode_v10010,                   \
    "cuThreadExchangeStreamCaptureMode")                                                                 \
  X(event_create, PFN_cuEventCreate_v2000, "cuEventCreate")                                              \
  X(event_record, PFN_cuEventRecord_v2000, "cuEventRecord")                                              \
  X(event_record_with_flags, PFN_cuEventRecordWithFlags_v11010, "cuEventRecordWithFlags")                \
  X(event_query, PFN_cuEventQuery_v2000, "cuEventQuery")                                                 \
  X(event_synchronize, PFN_cuEventSynchronize_v2000, "cuEventSynchronize")                               \
  X(event_elapsed_time, PFN_cuEventElapsedTime_v2000, "cuEventElapsedTime")                              \
  X(event_destroy, PFN_cuEventDestroy_v4000, "cuEventDestroy_v2")                                        \
  X(mem_get_info, PFN_cuMemGetInfo_v3020, "cuMemGetInfo_v2")                                             \
  X(mem_alloc, PFN_cuMemAlloc_v3020, "cuMemAlloc_v2")                                                    \
  X(mem_free, PFN_cuMemFree_v3020, "cuMemFree_v2")                                                       \
  X(mem_alloc_async, PFN_cuMemAllocAsync_v11020, "cuMemAllocAsync")                                      \
  X(mem_free_async, PFN_cuMemFreeAsync_v11020, "cuMemFreeAsync")                                         \
  X(mem_host_alloc, PFN_cuMemHostAlloc_v2020, "cuMemHostAlloc")                                          \
  X(mem_free_host, PFN_cuMemFreeHost_v2000, "cuMemFreeHost")                                             \
  X(mem_host_register, PFN_cuMemHostRegister_v6050, "cuMemHostRegister_v2")                              \
  X(mem_host_unregister, PFN_cuMemHostUnregister_v4000, "cuMemHostUnregister")                           \
  X(memcpy_async, PFN_cuMemcpyAsync_v4000, "cuMemcpyAsync")                                              \
  X(memset_d8_async, PFN_cuMemsetD8Async_v3020, "cuMemsetD8Async")                                       \
  X(pointer_get_attribute, PFN_cuPointerGetAttribute_v4000, "cuPointerGetAttribute")                     \
  X(pointer_get_attributes, PFN_cuPointerGetAttributes_v7000, "cuPointerGetAttributes")                  \
  X(launch_host_func, PFN_cuLaunchHostFunc_v10000, "cuLaunchHostFunc")                                   \
  X(launch_kernel, PFN_cuLaunchKernel_v4000, "cuLaunchKernel")                                           \
  X(module_load_data, PFN_cuModuleLoadData_v2000, "cuModuleLoadData")                                    \
  X(module_unload, PFN_cuModuleUnload_v2000, "cuModuleUnload")                                           \
  X(module_get_function, PFN_cuModuleGetFunction_v2000, "cuModuleGetFunction")                           \
  X(user_object_create, PFN_cuUserObjectCreate_v11030, "cuUserObjectCreate")                             \
  X(user_object_release, PFN_cuUserObjectRelease_v11030, "cuUserObjectRelease")                          \
  X(graph_retain_user_object, PFN_cuGraphRetainUserObject_v11030, "cuGraphRetainUserObject")             \
  X(graph_instantiate, PFN_cuGraphInstantiateWithFlags_v11040, "cuGraphInstantiateWithFlags")            \
  X(graph_launch, PFN_cuGraphLaunch_v10000, "cuGraphLaunch")                                             \
  X(graph_exec_destroy, PFN_cuGraphExecDestroy_v10000, "cuGraphExecDestroy")                             \
  X(graph_destroy, PFN_cuGraphDestroy_v10000, "cuGraphDestroy")

/// The table. Its functions are called as CUDA's own: driver().stream_query(stream).
struct DriverFunctions {
#define DDP_CUDA_MEMBER(member, type, symbol) type member = nullptr;
  DDP_CUDA_FUNCTIONS(DDP_CUDA_MEMBER)
#undef DDP_CUDA_MEMBER
};

/// The opened library: its functions, and where they are from. Looked for in this order: the libcuda.so.1 that the
/// process has loaded already (PyTorch's), DDP_CUDA_LIBRARY, the loader's. Never closed. Immutable: any thread.
class Driver : public DriverFunctions {
 public:
  /// Opens and initializes it (cuInit). Throws Error(unavailable) that names every place and what is wrong there: no
  /// library, a symbol missing, older than CUDA 12.0, or a driver that does not start.
  explicit Driver(const base::Environment& environment);

  const std::string& file() const noexcept { return file_; }  ///< where the loader found it
  int version() const noexcept { return version_; }           ///< of CUDA that the driver supports: 12040 is 12.4

 private:
  std::string file_;
  int version_ = 0;
};

/// The process's driver, opened at the first call. Throws as the constructor does, then tries anew at the next call.
const Driver& driver();

/// "12.4" of 12040.
std::string version_text(int version);

// ---- Turns CUresult into ddp::Error with the name that people search for ("CUDA_ERROR_OUT_OF_MEMORY (2)").

/// "CUDA_ERROR_OUT_OF_MEMORY (2)"; "CUresult (4711)" for one that the driver does not know.
std::string error_name(const DriverFunctions& driver, CUresult code);
std::string error_name(CUresult code);

/// "out of memory"
std::string error_text(const DriverFunctions& driver, CUresult code);

/// An Error whose cause and native code come from @p code.
Error cuda_error(std::string attempted, CUresult code);

/// Throws cuda_error(attempted, code) unless @p code is CUDA_SUCCESS.
inline void check(CUresult code, std::string_view attempted) {
  if (code != CUDA_SUCCESS) throw cuda_error(std::string(attempted), code);
}

/// For destructors: logs what failed, the first time in the process as a warning. A driver that is shutting down with
/// the process is no failure.
void log_failure(CUresult code, std::string_view attempted) noexcept;

}  // namespace ddp::cuda
