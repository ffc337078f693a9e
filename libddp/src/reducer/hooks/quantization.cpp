// Gradients in 8 bits, as PyTorch's quantization_pertensor_hook and quantization_perchannel_hook.
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include <ddp/comm_hooks.hpp>

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
    struct Messages {
      std::vector<std::uint8_t> own;
      std::vector<std::uint8_t> all;
    };
    const auto messages = std::make_shared<Messages>(
        Messages{.own = std::vector<std::uint8_t>(length), .all = std::vector<std::uint8_t>(length * ranks)});
    const auto scales_in = [](std::uint8_t* message) { return reinterpret_cast<kernels::RowScale*>(message); };
    kernels::HostExecutor executor;
    std::vector<std::uint32_t> workspace(2 * rows.number());
    const auto values = hooks::floats(bucket.buffer);
    kernels::quantize(executor, values.data(), rows, kKind, messages->own.data() + scales,
                      scales_in(messages->own.data()), workspace.data());
    const Work work = group.all_gather(messages->own, messages->all, {{}, messages});
    return [=] {
      work.wait();
      kernels::HostExecutor later;
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        std::uint8_t* const message = messages->all.data() + rank * length;
        kernels::dequantize(later, message + scales, scales_in(message), rows, kKind, values.data(), rank > 0);
      }
      for (float& value : values) value /= static_cast<float>(ranks);
    };
  }

 private:
  bool by_channel_;
};

}  // namespace

std::shared_ptr<CommHook> quantize_per_tensor_hook() { return std::make_shared<QuantizationHook>(false); }
std::shared_ptr<CommHook> quantize_per_channel_hook() { return std::make_shared<QuantizationHook>(true); }

}  // namespace ddp
