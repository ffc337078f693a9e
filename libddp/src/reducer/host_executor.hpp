// Moves tensors in the memory of the CPU, on the calling thread.
#pragma once

#include <ddp/tensor_executor.hpp>

#include "collectives/kernel_launcher.hpp"
#include "kernels/executor.hpp"

namespace ddp::reducer {

/// Any thread, all members.
class HostExecutor final : public TensorExecutor, public collectives::KernelLauncher {
 public:
  std::optional<Stream> stream() const noexcept override { return std::nullopt; }
  void copy(std::span<const TensorCopy> copies, DType from, DType to, int divisor) override;
  Bytes read(const void* from, std::size_t bytes, Deadline deadline) override;
  void write(std::shared_ptr<const Bytes> from, void* to, Deadline deadline) override;
  void wait_for(const Work& work) override { work.wait(); }
  void wait_for(const Moment& /*over*/) override {}
  Moment now_in(const Stream& /*none*/) override { return {}; }
  void hold_back(const Stream& /*none*/) override {}
  void keep(std::shared_ptr<const void> /*not used any more*/) noexcept override {}
  kernels::Executor& launcher() override { return kernels_; }

 private:
  kernels::HostExecutor kernels_;
};

}  // namespace ddp::reducer
