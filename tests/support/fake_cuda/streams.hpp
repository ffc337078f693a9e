// Making streams, and launching kernels into them.
#pragma once

#include "tests/support/fake_cuda/state.hpp"

namespace fake_cuda {

/// Highest and lowest priority of streams: lower numbers are more urgent.
inline constexpr int kGreatestPriority = -5;
inline constexpr int kLeastPriority = 0;

/// With its thread. With the lock.
Stream* make_stream(Context& context, unsigned flags, int priority);
Stream& legacy_stream(Context& context);

/// Submits a kernel: the stream's context must be current. Takes the lock.
CUresult launch(CUstream handle, WorkPtr work);

std::size_t live_modules();

}  // namespace fake_cuda
