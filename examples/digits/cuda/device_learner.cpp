#include "digits/cuda/device_learner.hpp"

#include <utility>
#include <vector>

#include "digits/cuda/driver.hpp"
#include "digits/cuda/network.hpp"

namespace digits::cuda {
namespace {

int device_of(const ddp::World& world) {
  if (const auto& device = world.device()) return device->index;
  // GPUs that only CUDA's driver knows of
  const int count = Gpu::count();
  if (count > 0) return world.local_rank() % count;
  throw ddp::Error{{.code = ddp::ErrorCode::unavailable,
                    .attempted = "choosing a CUDA device",
                    .cause = "this rank may use none",
                    .ranks = {world.rank()},
                    .hint = "ask the launcher for GPUs, or use --device cpu"}};
}

class DeviceLearner final : public Learner {
 public:
  DeviceLearner(const ddp::World& world, ddp::ProcessGroup group, const DeviceLearnerOptions& options)
      : group_(std::move(group)),
        gpu_(device_of(world)),
        network_(gpu_, options.widths, options.seed, options.max_batch),
        options_(options) {
    if (group_.size() == 1) return;
    group_.broadcast(view(network_.values(), network_.parameter_count()), 0, call()).order(stream());
  }

  double learn(const Batch<float>& batch, float scale) override {
    const double loss = network_.forward(batch).loss_sum;
    std::vector<ddp::Work> averages;
    network_.backward(scale, [&](std::size_t first, std::size_t count) {
      if (group_.size() == 1) return;  // its own is the average
      averages.push_back(group_.all_reduce(view(network_.gradients() + first, count), ddp::ReduceOp::avg, call()));
    });
    // The device waits for the averages; this thread does not.
    for (const ddp::Work& average : averages) average.order(stream());
    network_.update(options_.learning_rate, options_.momentum);
    return loss;
  }

  std::size_t correct(const Batch<float>& batch) override { return network_.forward(batch).correct; }
  const ddp::ReducerStats* stats() const override { return nullptr; }

 private:
  ddp::TensorView view(float* memory, std::size_t count) const {
    return {memory, ddp::DType::float32, {static_cast<std::int64_t>(count)}, stream().device};
  }
  ddp::Stream stream() const { return {{ddp::DeviceType::cuda, gpu_.index()}, gpu_.stream()}; }
  ddp::CallOptions call() const {
    ddp::CallOptions options;
    options.stream = stream();
    return options;
  }

  ddp::ProcessGroup group_;
  Gpu gpu_;
  DeviceNetwork network_;
  DeviceLearnerOptions options_;
};

}  // namespace

std::unique_ptr<Learner> make_device_learner(const ddp::World& world, ddp::ProcessGroup group,
                                             const DeviceLearnerOptions& options) {
  return std::make_unique<DeviceLearner>(world, std::move(group), options);
}

}  // namespace digits::cuda
