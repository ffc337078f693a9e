// Moves tensors on a CUDA device by libddp's kernels, in a stream of its own.
#pragma once

#include <memory>
#include <string>

#include <ddp/backend.hpp>
#include <ddp/deadline.hpp>
#include <ddp/tensor_executor.hpp>

namespace ddp::collectives::nccl {

/// @param device: the ordinal. @param group for messages. @param converts: load the kernels, without which it copies
/// bytes only. Blocks until @p deadline at most, with pauses, since loading may wait for work on the device. Throws
/// Error.
std::shared_ptr<TensorExecutor> make_device_executor(int device, const std::string& group, bool converts,
                                                     Deadline deadline,
                                                     const Backend::Pause& pause = Backend::pause_briefly);

}  // namespace ddp::collectives::nccl
