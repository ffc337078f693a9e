// Memory for buckets and for what hooks make of them, and what moves gradients there.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <ddp/reducer.hpp>

namespace ddp::reducer {

/// By the program's allocator, else the C++ library's or, on a CUDA device, the group's, which may be collective.
/// Zeroed there in home_stream(), and alive until @p executor is done with it. Throws Error.
std::shared_ptr<void> bucket_memory(std::size_t bytes, Device device, const ReducerOptions& options,
                                    ProcessGroup& group, const std::shared_ptr<TensorExecutor>& executor);
/// Of the CPU, by the C++ library's allocator.
std::shared_ptr<void> host_memory(std::size_t bytes);
/// The program's stream.
Stream home_stream(Device device, const ReducerOptions& options);

/// What moves gradients that are on a CUDA device; null if there are none, or they stay where they are. Throws Error
/// where they cannot be moved as the options want it.
std::shared_ptr<TensorExecutor> device_executor(const std::vector<Parameter>& parameters, const ReducerOptions& options,
                                                ProcessGroup& group);

}  // namespace ddp::reducer
