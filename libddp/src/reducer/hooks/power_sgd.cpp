// PowerSGD (Vogels, Karimireddy, Jaggi: "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
// Optimization", NeurIPS 2019), in the form of PyTorch's powerSGD_hook.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ddp/comm_hooks.hpp>

#include "base/invalid_argument.hpp"
#include "reducer/hooks/error_memory.hpp"
#include "reducer/hooks/float_hook.hpp"
#include "reducer/hooks/iteration.hpp"
#include "reducer/hooks/low_rank.hpp"

namespace ddp {
namespace {

using hooks::Factor;
using hooks::Matrix;

class PowerSgdHook final : public hooks::FloatHook {
 public:
  PowerSgdHook(const PowerSgdOptions& options, bool batched) : options_(options), batched_(batched) {
    const bool usable = options.rank >= 1 && options.min_compression_rate > 0 && options.orthogonalization_epsilon >= 0;
    if (usable) return;
    base::throw_invalid_argument("making a PowerSGD hook",
                                 fmt::format("rank {}, compression rate {}, epsilon {}", options.rank,
                                             options.min_compression_rate, options.orthogonalization_epsilon),
                                 "give a rank of 1 or more, a rate above 0, and an epsilon that is not negative");
  }

  std::string name() const override {
    return fmt::format("{}PowerSGD: rank {}, from step {}, rate {}{}{}, epsilon {}, seed {}",
                       batched_ ? "batched " : "", options_.rank, options_.start_iteration,
                       options_.min_compression_rate, options_.error_feedback ? ", error feedback" : "",
                       options_.warm_start ? ", warm start" : "", options_.orthogonalization_epsilon, options_.seed);
  }

  void join_group(ProcessGroup& group) override {
    forget();
    iteration_.agree(group);
  }
  void end_step(bool complete) noexcept override {
    under_way_.clear();
    if (!complete) return forget();
    if (iteration_.reached(options_.start_iteration)) ++draws_;
    iteration_.advance();
  }
  bool needs_all_parameters() const override { return options_.error_feedback; }

 protected:
  BucketExchange start_floats(const GradientBucket& bucket, ProcessGroup& group) override {
    if (!iteration_.reached(options_.start_iteration)) return start_average(bucket, group);
    const auto exchange = std::make_shared<Exchange>(bucket, group);
    find_matrices(*exchange);
    allot(*exchange);
    const auto first = exchange->first;
    std::size_t place = 0;
    for (const Exact& part : exchange->exact) {
      for (const float value : part.elements) (*first)[place++] = value / static_cast<float>(group.size());
    }
    for (const Compressed& part : exchange->compressed) hooks::multiply(part.matrix, part.right, part.left);
    exchange->work = group.all_reduce(*first, ReduceOp::sum, {{}, first});
    under_way_.push_back(exchange);
    return [this, exchange] {
      continue_all();
      finish(*exchange);
    };
  }

 private:
  struct Compressed {
    std::size_t parameter;  ///< of a batched bucket the first
    Matrix matrix;
    Factor left;
    Factor right;
  };
  struct Exact {
    std::span<float> elements;
  };
  /// Of one bucket.
  struct Exchange {
    Exchange(GradientBucket lent, ProcessGroup over) : bucket(std::move(lent)), group(std::move(over)) {}
    GradientBucket bucket;
    ProcessGroup group;
    std::vector<Compressed> compressed;
    std::vector<Exact> exact;
    std::shared_ptr<std::vector<float>> first;   ///< what is not compressed, divided; then all left factors
    std::shared_ptr<std::vector<float>> second;  ///< all right factors
    std::optional<Work> work;                    ///< of the first, then of the second
    bool continued = false;
  };

  std::size_t rank_of(std::size_t rows, std::size_t columns) const {
    return std::min({rows, columns, static_cast<std::size_t>(options_.rank)});
  }

  void find_matrices(Exchange& exchange) {
    const GradientBucket& bucket = exchange.bucket;
    const auto add = [&](std::size_t parameter, std::span<float> elements, std::size_t columns) {
      exchange.compressed.push_back(
          {.parameter = parameter, .matrix = {.elements = elements, .columns = columns}, .left = {}, .right = {}});
    };
    const auto feed_back = [&](std::size_t slot) {
      if (options_.error_feedback) errors_.add_to(bucket.parameters[slot], bucket.gradients[slot]);
    };
    if (batched_) {
      for (std::size_t slot = 0; slot < bucket.gradients.size(); ++slot) feed_back(slot);
      const auto side = static_cast<std::size_t>(std::ceil(std::sqrt(static_cast<double>(bucket.buffer.numel()))));
      if (side > 0) add(bucket.parameters.front(), hooks::floats(bucket.buffer), side);
      return;
    }
    for (std::size_t slot = 0; slot < bucket.gradients.size(); ++slot) {
      const TensorView& gradient = bucket.gradients[slot];
      if (gradient.numel() == 0) continue;
      const std::size_t rows = gradient.shape().empty() ? 1 : static_cast<std::size_t>(gradient.shape()[0]);
      const std::size_t columns = gradient.numel() / rows;
      const auto sent = static_cast<double>((rows + columns) * rank_of(rows, columns));
      if (sent * options_.min_compression_rate < static_cast<double>(rows) * static_cast<double>(columns)) {
        feed_back(slot);
        add(bucket.parameters[slot], hooks::floats(gradient), columns);
      } else {
        exchange.exact.push_back({hooks::floats(gradient)});
      }
    }
  }

  /// Memory for the factors, and the right ones' beginning.
  void allot(Exchange& exchange) {
    std::size_t first = 0;
    std::size_t second = 0;
    for (const Exact& part : exchange.exact) first += part.elements.size();
    for (const Compressed& part : exchange.compressed) {
      const std::size_t rank = rank_of(part.matrix.rows(), part.matrix.columns);
      first += part.matrix.rows() * rank;
      second += part.matrix.columns * rank;
    }
    exchange.first = std::make_shared<std::vector<float>>(first);
    exchange.second = std::make_shared<std::vector<float>>(second);
    float* left = exchange.first->data() + first;  // from the end
    float* right = exchange.second->data();
    for (Compressed& part : exchange.compressed) {
      const std::size_t rank = rank_of(part.matrix.rows(), part.matrix.columns);
      left -= part.matrix.rows() * rank;
      part.left = {.data = left, .length = part.matrix.rows(), .columns = rank};
      part.right = {.data = right, .length = part.matrix.columns, .columns = rank};
      right += part.matrix.columns * rank;
      begin_right(part);
    }
  }

  /// The last step's factor, which is the same on all ranks, or a random one.
  void begin_right(const Compressed& part) {
    const std::size_t count = part.right.length * part.right.columns;
    // every draw of every parameter has seeds of its own, with room for one for each column
    const std::uint64_t seed = options_.seed + (draws_ << 44U) + (part.parameter << 16U);
    const auto kept = factors_.find(part.parameter);
    if (kept != factors_.end() && kept->second.size() == count) {
      std::ranges::copy(kept->second, part.right.data);
    } else {
      hooks::fill_normal({part.right.data, count}, seed);
    }
    hooks::orthogonalize_full(part.right, options_.orthogonalization_epsilon, seed + 1);
  }

  /// The second operation of all buckets, in their order: the first of them travels while the next is computed.
  void continue_all() {
    for (const auto& exchange : under_way_) {
      if (exchange->continued) continue;
      exchange->continued = true;
      exchange->work->wait();
      if (exchange->compressed.empty()) continue;
      for (const Compressed& part : exchange->compressed) {
        hooks::orthogonalize(part.left, options_.orthogonalization_epsilon);
        hooks::multiply_transposed(part.matrix, part.left, part.right);
      }
      exchange->work = exchange->group.all_reduce(*exchange->second, ReduceOp::sum, {{}, exchange->second});
    }
  }

  void finish(Exchange& exchange) {
    exchange.work->wait();
    std::size_t place = 0;
    for (const Exact& part : exchange.exact) {
      std::copy_n(exchange.first->data() + place, part.elements.size(), part.elements.data());
      place += part.elements.size();
    }
    const float scale = 1.0F / static_cast<float>(exchange.group.size());
    std::vector<float> difference;
    for (const Compressed& part : exchange.compressed) {
      const std::span right{part.right.data, part.right.length * part.right.columns};
      difference.resize(options_.error_feedback ? part.matrix.elements.size() : 0);
      hooks::expand(part.left, part.right, scale, part.matrix, difference);
      // a gradient that is not finite, as when a loss scale is too large, must not stay in what is kept; all ranks have
      // the same factor
      const bool finite = std::ranges::all_of(right, [](float value) { return std::isfinite(value); });
      if (!finite) std::ranges::fill(difference, 0.0F);
      if (finite && options_.warm_start) factors_[part.parameter].assign(right.begin(), right.end());
      if (!finite) factors_.erase(part.parameter);
      if (batched_) keep_errors(exchange.bucket, difference);
      if (!batched_ && options_.error_feedback) errors_.of(part.parameter, difference.size()).swap(difference);
    }
  }

  /// A batched bucket's, by parameter.
  void keep_errors(const GradientBucket& bucket, std::span<const float> difference) {
    for (std::size_t slot = 0; slot < bucket.parameters.size() && !difference.empty(); ++slot) {
      const std::size_t count = bucket.gradients[slot].numel();
      std::ranges::copy(difference.first(count), errors_.of(bucket.parameters[slot], count).begin());
      difference = difference.subspan(count);
    }
  }

  void forget() noexcept {
    under_way_.clear();
    errors_.clear();
    factors_.clear();
    draws_ = 0;
  }

  const PowerSgdOptions options_;
  const bool batched_;
  hooks::Iteration iteration_;
  std::uint64_t draws_ = 0;  ///< compressed steps since the last forget()
  hooks::ErrorMemory errors_;
  std::map<std::size_t, std::vector<float>> factors_;  ///< right ones, by parameter; of a batched bucket its first
  std::vector<std::shared_ptr<Exchange>> under_way_;
};

}  // namespace

std::shared_ptr<CommHook> power_sgd_hook(PowerSgdOptions options) {
  return std::make_shared<PowerSgdHook>(options, false);
}
std::shared_ptr<CommHook> batched_power_sgd_hook(PowerSgdOptions options) {
  return std::make_shared<PowerSgdHook>(options, true);
}

}  // namespace ddp
