// Gradients in 8 bits, as PyTorch's quantization_pertensor_hook and quantization_perchannel_hook.
#include <algorithm>
#include <cstdint>
#include <memory>

#include <ddp/comm_hooks.hpp>

#include "collectives/kernel_launcher.hpp"
#include "kernels/compression.hpp"
#include "reducer/hooks/float_hook.hpp"

namespace ddp {
namespace {

constexpr std::size_t kChannel = 512;  // elements, as PyTorch's
constexpr auto kKind = kernels::Quantization::affine;

class QuantizationHook final : public hooks::FloatHook {
 public:
  explicit QuantizationHook(bool by_channel) : by_channel_(by_channel) {}
  std::string name() const override { return by_channel_ ? "8 bits per channel" : "8 bits per tensor"; }

 protected:
  /// A rank's message: the scales of all rows, then the bytes, up to a multiple of the scales' alignment.
  BucketExchange start_floats(const GradientBucket& bucket, ProcessGroup& group) override {
    const kernels::Rows rows{.count = bucket.buffer.numel(),
                             .row = by_channel_ ? kChannel : std::max<std::size_t>(bucket.buffer.numel(), 1)};
    const std::size_t scales = rows.number() * sizeof(kernels::RowScale);
    const std::size_t length = scales + (rows.count + alignof(kernels::RowScale) - 1) / alignof(kernels::RowScale) *
                                            alignof(kernels::RowScale);
    const auto ranks = static_cast<std::size_t>(group.size());
    // of all ranks, then the own one, then the workspace
    const std::shared_ptr<void> memory =
        messages_.take(bucket, length * (ranks + 1) + 2 * sizeof(std::uint32_t) * rows.number());
    auto* const all = static_cast<std::uint8_t*>(memory.get());
    std::uint8_t* const own = all + length * ranks;
    float* const values = hooks::floats(bucket.buffer).data();
    const auto scales_in = [](std::uint8_t* message) { return reinterpret_cast<kernels::RowScale*>(message); };
    kernels::quantize(collectives::KernelLauncher::of(*bucket.executor), values, rows, kKind, own + scales,
                      scales_in(own), reinterpret_cast<std::uint32_t*>(own + length));
    const auto bytes = [&](std::uint8_t* begin, std::size_t count) {
      return TensorView{begin, DType::uint8, {static_cast<std::int64_t>(count)}, bucket.buffer.device()};
    };
    const Work work =
        group.all_gather(bytes(own, length), bytes(all, length * ranks), hooks::options_for(bucket, memory));
    return [=, executor = bucket.executor] {
      executor->wait_for(work);
      kernels::dequantize(collectives::KernelLauncher::of(*executor), all + scales, scales_in(all),
                          {.number = ranks, .stride_bytes = length}, rows, kKind, values, static_cast<int>(ranks));
    };
  }
  void forget() noexcept override { messages_.clear(); }

 private:
  bool by_channel_;
  hooks::BucketCopies messages_;
};

}  // namespace

std::shared_ptr<CommHook> quantize_per_tensor_hook() { return std::make_shared<QuantizationHook>(false); }
std::shared_ptr<CommHook> quantize_per_channel_hook() { return std::make_shared<QuantizationHook>(true); }

}  // namespace ddp
