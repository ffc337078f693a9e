// Learns on a CUDA device: each layer's gradients are averaged, by NCCL, while the layers before it are computed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <ddp/ddp.hpp>

#include "digits/learner.hpp"

namespace digits::cuda {

struct DeviceLearnerOptions {
  std::span<const std::size_t> widths;  ///< must outlive the call only
  std::uint64_t seed;
  std::size_t max_batch;  ///< samples of a rank at once
  float learning_rate;
  float momentum;
};

/// On this rank's device (ddp::World::device()). Collective over @p group. Throws ddp::Error where there is none.
std::unique_ptr<Learner> make_device_learner(const ddp::World& world, ddp::ProcessGroup group,
                                             const DeviceLearnerOptions& options);

}  // namespace digits::cuda
