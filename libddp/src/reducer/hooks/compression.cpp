// Gradients in 8 bits, as PyTorch's quantization_pertensor_hook and quantization_perchannel_hook.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include <fmt/format.h>

#include <ddp/comm_hooks.hpp>

#include "base/errors.hpp"
#include "collectives/backend.hpp"
#include "kernels/compression.hpp"
#include "kernels/copies.hpp"
#include "reducer/hooks/parameter_memory.hpp"
#include "reducer/hooks/recast.hpp"

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

// Only the largest elements of a bucket travel; what is left out is added to the next gradient (Aji and Heafield:
// "Sparse Communication for Distributed Gradient Descent", EMNLP 2017).

namespace {

class TopKHook final : public hooks::FloatHook {
 public:
  explicit TopKHook(double fraction) : fraction_(fraction) {
    if (fraction > 0 && fraction <= 1) return;
    base::throw_invalid_argument("making a hook that sends the largest elements",
                                 fmt::format("{} is not a fraction", fraction), "give one in (0, 1]");
  }
  std::string name() const override { return fmt::format("top-k: {}", fraction_); }
  bool needs_all_parameters() const override { return true; }

 protected:
  BucketExchange start_floats(const GradientBucket& bucket, ProcessGroup& group) override {
    const auto values = hooks::floats(bucket.buffer);
    if (values.empty()) return [] {};
    kernels::Executor& launcher = collectives::KernelLauncher::of(*bucket.executor);
    const hooks::ParameterMemory::Places errors = take_errors(bucket);
    add_errors(launcher, bucket, errors);

    const auto wanted = std::clamp<std::size_t>(
        static_cast<std::size_t>(std::ceil(fraction_ * static_cast<double>(values.size()))), 1, values.size());
    const auto ranks = static_cast<std::size_t>(group.size());
    const std::shared_ptr<void> memory =
        messages_.take(bucket, sizeof(Word) * 2 * wanted * (ranks + 1) + sizeof(kernels::SelectionWorkspace));
    const Message all{.words = static_cast<Word*>(memory.get()), .wanted = wanted};
    const Message own = all.behind(ranks);
    kernels::select_largest(launcher, values.data(), values.size(), wanted, own.indices(), own.values(),
                            reinterpret_cast<kernels::SelectionWorkspace*>(own.behind(1).words));
    kernels::scatter_zero(launcher, own.indices(), wanted, values.data());
    // of all gradients, which lie as they do in the bucket
    const std::array left{kernels::Piece{.from = values.data(), .to = errors.now.front(), .count = values.size()}};
    kernels::copy_finite(launcher, left);

    const Device device = bucket.buffer.device();
    const Work work =
        group.all_gather(own.view(1, device), all.view(ranks, device), hooks::options_for(bucket, memory));
    return [=, executor = bucket.executor] {
      executor->wait_for(work);
      const TensorCopy zeros{.from = nullptr, .to = values.data(), .count = values.size()};
      executor->copy({&zeros, 1}, DType::float32, DType::float32);
      kernels::Executor& later = collectives::KernelLauncher::of(*executor);
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        const Message message = all.behind(rank);
        kernels::scatter_add(later, message.indices(), message.values(), wanted, values.data(),
                             static_cast<int>(ranks));
      }
    };
  }
  void forget() noexcept override {
    errors_.clear();
    messages_.clear();
  }

 private:
  using Word = std::int32_t;
  /// What a rank sends: positions, then values.
  struct Message {
    Word* words;
    std::size_t wanted;
    std::uint32_t* indices() const { return reinterpret_cast<std::uint32_t*>(words); }
    float* values() const { return reinterpret_cast<float*>(words + wanted); }
    Message behind(std::size_t messages) const { return {.words = words + 2 * wanted * messages, .wanted = wanted}; }
    TensorView view(std::size_t messages, Device device) const {
      return {words, DType::int32, {static_cast<std::int64_t>(2 * wanted * messages)}, device};
    }
  };

  hooks::ParameterMemory::Places take_errors(const GradientBucket& bucket) {
    std::vector<hooks::ParameterMemory::Entry> entries;
    for (std::size_t slot = 0; slot < bucket.parameters.size(); ++slot) {
      entries.push_back({.parameter = bucket.parameters[slot], .count = bucket.gradients[slot].numel()});
    }
    return errors_.take(bucket, entries);
  }
  static void add_errors(kernels::Executor& launcher, const GradientBucket& bucket,
                         const hooks::ParameterMemory::Places& errors) {
    std::vector<kernels::Piece> pieces;
    for (std::size_t slot = 0; slot < bucket.gradients.size(); ++slot) {
      if (errors.kept[slot] == nullptr) continue;
      const TensorView& gradient = bucket.gradients[slot];
      pieces.push_back({.from = errors.kept[slot], .to = gradient.data(), .count = gradient.numel()});
    }
    kernels::add(launcher, pieces);
  }

  const double fraction_;
  hooks::ParameterMemory errors_;
  hooks::BucketCopies messages_;
};

}  // namespace

std::shared_ptr<CommHook> top_k_hook(double fraction) { return std::make_shared<TopKHook>(fraction); }

}  // namespace ddp
