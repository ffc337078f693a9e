// What the double of CUDA's driver exports besides the driver's own symbols: kernels as functions of the host, work for
// the fake NCCL, and controls for tests. C functions, so that they can be found by name in the loaded library.
//
// The double is a libcuda.so.1 in a folder of its own (build/*/lib/fake_cuda): DDP_CUDA_LIBRARY names it. Streams are
// FIFOs with a thread each; device memory is host memory. Environment, read by cuInit:
//   FAKE_CUDA_DEVICES=2            devices of this machine; CUDA_VISIBLE_DEVICES (numbers) chooses among them
//   FAKE_CUDA_HOST=text            machines with different texts have devices with different UUIDs
//   FAKE_CUDA_VERSION=13000        what cuDriverGetVersion says
//   FAKE_CUDA_MEMORY_MIB=512       of each device
//   FAKE_CUDA_CONCURRENT_KERNELS=128   how many kernels a device runs at once
//   FAKE_CUDA_JITTER_SEED=n        delays each piece of work by up to FAKE_CUDA_JITTER_US=200, drawn from this seed
//   FAKE_CUDA_KERNELS=a.so:b.so    libraries with kernels, see fake_cuda_kernels
//   FAKE_CUDA_FAULTS=rules         see fake_cuda_add_faults
#pragma once

#include <cstddef>

#include <cuda.h>

/// A kernel. It has one parameter, a plain struct of @p bytes bytes, which is copied when it is launched.
struct FakeCudaKernel {
  const char* name;
  void (*run)(const void* argument);
  std::size_t bytes;
};

extern "C" {

/// Makes kernels known to modules; later ones of the same name replace earlier ones. Names stay valid.
void fake_cuda_register_kernels(const FakeCudaKernel* kernels, std::size_t count);
/// What a library of FAKE_CUDA_KERNELS exports, not the double.
const FakeCudaKernel* fake_cuda_kernels(std::size_t* count);

/// Puts work that acts as a kernel into @p stream: run(argument) is called once, in the stream's thread and in its
/// order, with no lock held, and may block for long. Then, or when the work is dropped (the context has failed),
/// drop(argument). In a captured stream it becomes a node of the graph: run is called at each launch, drop once nothing
/// can launch it any more. @p drop may be null; it is called when this fails, too.
CUresult fake_cuda_enqueue(CUstream stream, void (*run)(void*), void (*drop)(void*), void* argument);

/// Checks what a kernel is about to touch: 1 if the @p bytes at @p address are allocated and not freed. Otherwise 0,
/// and called from a stream's thread the context fails with CUDA_ERROR_ILLEGAL_ADDRESS, as on a device.
int fake_cuda_touch(const void* address, std::size_t bytes);

/// Makes a context fail as by a kernel: every later call returns @p code, and no more work runs. There is no way back.
void fake_cuda_fail_context(CUcontext context, CUresult code);

/// Holds a stream before its next piece of work, and lets it go on.
CUresult fake_cuda_pause_stream(CUstream stream);
CUresult fake_cuda_resume_stream(CUstream stream);

/// Adds rules, separated by ';': FUNCTION[@RANK][#N[+]]=ACTION[:VALUE]
///   FUNCTION  a symbol without its version (cuMemAlloc), or run:LABEL for work when it runs: a kernel's name, memcpy,
///   memset,
///             host_function, enqueued
///   RANK      only on this rank: fake_cuda_set_rank, else FAKE_CUDA_RANK, PMIX_RANK, PMI_RANK or RANK
///   N         only the Nth call, counted from 1 since the rule was added; N+: from then on
///   ACTION    fail:CODE (a CUresult as number; work fails its context), delay:MILLISECONDS, hang (until
///             fake_cuda_clear_faults), kill (SIGKILL), stop (SIGSTOP)
/// 0 if a rule cannot be read; then none is added.
int fake_cuda_add_faults(const char* rules);
void fake_cuda_clear_faults();
/// The rank of this thread and the streams that it makes, for ranks that are threads. -1: as the process.
void fake_cuda_set_rank(int rank);

/// How often a function was called in this process, successfully or not, by a symbol without its version.
long fake_cuda_call_count(const char* function);
/// What is not destroyed or freed, for tests of leaks; and the kernels that wait for room on their device.
struct FakeCudaLive {
  std::size_t streams, events, modules, graphs, allocations, user_objects, waiting_kernels;
};
FakeCudaLive fake_cuda_live();
}
