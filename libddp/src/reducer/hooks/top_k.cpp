// Only the largest elements of a bucket travel; what is left out is added to the next gradient (Aji and Heafield:
// "Sparse Communication for Distributed Gradient Descent", EMNLP 2017).
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include <fmt/format.h>

#include <ddp/comm_hooks.hpp>

#include "base/invalid_argument.hpp"
#include "kernels/compression.hpp"
#include "reducer/hooks/error_memory.hpp"
#include "reducer/hooks/float_hook.hpp"

namespace ddp {
namespace {

class TopKHook final : public hooks::FloatHook {
 public:
  explicit TopKHook(double fraction) : fraction_(fraction) {
    if (fraction > 0 && fraction <= 1) return;
    base::throw_invalid_argument("making a hook that sends the largest elements",
                                 fmt::format("{} is no fraction of them", fraction), "give one in (0, 1]");
  }
  std::string name() const override { return fmt::format("top-k: {}", fraction_); }
  void join_group(ProcessGroup& /*unused*/) override { errors_.clear(); }
  void end_step(bool complete) noexcept override {
    if (!complete) errors_.clear();
  }
  bool needs_all_parameters() const override { return true; }

 protected:
  /// A rank's message: positions, then values.
  BucketExchange start_floats(const GradientBucket& bucket, ProcessGroup& group) override {
    const auto values = hooks::floats(bucket.buffer);
    if (values.empty()) return [] {};
    for (std::size_t slot = 0; slot < bucket.parameters.size(); ++slot) {
      errors_.add_to(bucket.parameters[slot], bucket.gradients[slot]);
    }
    const auto wanted = std::clamp<std::size_t>(
        static_cast<std::size_t>(std::ceil(fraction_ * static_cast<double>(values.size()))), 1, values.size());
    const auto ranks = static_cast<std::size_t>(group.size());
    struct Messages {
      std::vector<std::int32_t> own;
      std::vector<std::int32_t> all;
    };
    const auto messages = std::make_shared<Messages>(
        Messages{.own = std::vector<std::int32_t>(2 * wanted), .all = std::vector<std::int32_t>(2 * wanted * ranks)});
    std::vector<std::uint32_t> indices(wanted);
    std::vector<float> largest(wanted);
    kernels::HostExecutor executor;
    kernels::select_largest(executor, values.data(), values.size(), wanted, indices.data(), largest.data(),
                            workspace_.get());
    for (std::size_t i = 0; i < wanted; ++i) {
      messages->own[i] = static_cast<std::int32_t>(indices[i]);
      messages->own[wanted + i] = std::bit_cast<std::int32_t>(largest[i]);
      values[indices[i]] = 0;
    }
    for (std::size_t slot = 0; slot < bucket.parameters.size(); ++slot) {
      const auto left = hooks::floats(bucket.gradients[slot]);
      std::ranges::transform(left, errors_.of(bucket.parameters[slot], left.size()).begin(),
                             [](float value) { return std::isfinite(value) ? value : 0; });
    }
    const Work work = group.all_gather(messages->own, messages->all, {{}, messages});
    return [=] {
      work.wait();
      std::ranges::fill(values, 0.0F);
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        const std::int32_t* const message = messages->all.data() + rank * 2 * wanted;
        for (std::size_t i = 0; i < wanted; ++i) {
          values[static_cast<std::uint32_t>(message[i])] +=
              std::bit_cast<float>(message[wanted + i]) / static_cast<float>(ranks);
        }
      }
    };
  }

 private:
  const double fraction_;
  hooks::ErrorMemory errors_;
  std::unique_ptr<kernels::SelectionWorkspace> workspace_ = std::make_unique<kernels::SelectionWorkspace>();
};

}  // namespace

std::shared_ptr<CommHook> top_k_hook(double fraction) { return std::make_shared<TopKHook>(fraction); }

}  // namespace ddp
