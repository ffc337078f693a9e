// Stands for the CUDA runtime's header, of which nccl.h needs these types only.
#pragma once

typedef struct CUstream_st* cudaStream_t;  // NOLINT(modernize-use-using): C
typedef struct CUevent_st* cudaEvent_t;    // NOLINT(modernize-use-using): C
