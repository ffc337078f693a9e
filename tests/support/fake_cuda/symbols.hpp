// cuda.h for the double's own sources: its functions become the double's exported ones, under the symbols of the
// driver's binary interface (cuda.h's macros make cuMemAlloc into cuMemAlloc_v2, so the compiler compares the
// signatures).
#pragma once

#include <cuda.h>

// What the short name stands for in CUDA 12 or 13, but not in the other.
#undef cuEventElapsedTime
#undef cuCtxGetDevice
#undef cuCtxSynchronize
extern "C" {
CUresult cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end);
CUresult cuStreamGetCaptureInfo_v2(CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
                                   const CUgraphNode** dependencies, size_t* dependency_count);
}

#include "tests/support/fake_cuda/fake_cuda.hpp"
