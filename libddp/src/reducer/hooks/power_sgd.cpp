// PowerSGD (Vogels, Karimireddy, Jaggi: "PowerSGD: Practical Low-Rank Gradient Compression for Distributed
// Optimization", NeurIPS 2019), in the form of PyTorch's powerSGD_hook.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ddp/comm_hooks.hpp>

#include "base/errors.hpp"
#include "collectives/backend.hpp"
#include "kernels/copies.hpp"
#include "kernels/low_rank.hpp"
#include "reducer/hooks/parameter_memory.hpp"
#include "reducer/hooks/recast.hpp"

namespace ddp {
namespace {

using hooks::ParameterMemory;
using kernels::Factor;

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
    FloatHook::join_group(group);
    iteration_.agree(group);
  }
  void end_step(bool complete) noexcept override {
    FloatHook::end_step(complete);
    under_way_.clear();
    if (!complete) return;
    if (iteration_.reached(options_.start_iteration)) ++draws_;
    iteration_.advance();
  }
  bool needs_all_parameters() const override { return options_.error_feedback; }

 protected:
  BucketExchange start_floats(const GradientBucket& bucket, ProcessGroup& group) override {
    if (!iteration_.reached(options_.start_iteration)) return start_average(bucket, group);
    const auto exchange = std::make_shared<Exchange>(bucket, group);
    find_matrices(*exchange);
    feed_back(*exchange);
    allot(*exchange);
    begin_right(*exchange);
    std::vector<kernels::Piece> pieces;
    for (const Exact& part : exchange->exact) {
      pieces.push_back({.from = part.elements.data(), .to = part.sent, .count = part.elements.size()});
    }
    kernels::copy(exchange->launcher(), pieces, kernels::Format::float32, kernels::Format::float32, 1.0 / group.size());
    for (const Compressed& part : exchange->compressed) {
      kernels::multiply(exchange->launcher(), part.matrix, part.right, part.left);
    }
    exchange->add_up(exchange->first);
    under_way_.push_back(exchange);
    return [this, exchange] {
      continue_all();
      finish(*exchange);
    };
  }
  void forget() noexcept override {
    under_way_.clear();
    errors_.clear();
    factors_.clear();
    messages_.clear();
    draws_ = 0;
  }

 private:
  struct Compressed {
    std::size_t parameter;  ///< the first one of a batched bucket
    kernels::Matrix matrix;
    Factor left{};
    Factor right{};
    float* error;  ///< what the matrix leaves out; null: it is lost
  };
  struct Exact {
    std::span<float> elements;
    float* sent;
  };
  /// The state of one bucket.
  struct Exchange {
    Exchange(GradientBucket lent, ProcessGroup over) : bucket(std::move(lent)), group(std::move(over)) {}

    kernels::Executor& launcher() const { return collectives::KernelLauncher::of(*bucket.executor); }
    std::vector<Factor> factors(Factor Compressed::*which) const {
      std::vector<Factor> all;
      for (const Compressed& part : compressed) all.push_back(part.*which);
      return all;
    }
    /// Floats that the ranks sum.
    struct Message {
      std::shared_ptr<void> memory;
      float* begin = nullptr;
      std::size_t count = 0;
    };
    void add_up(const Message& message) {
      const TensorView floats{
          message.begin, DType::float32, {static_cast<std::int64_t>(message.count)}, bucket.buffer.device()};
      work = group.all_reduce(floats, ReduceOp::sum, hooks::options_for(bucket, message.memory));
    }

    GradientBucket bucket;
    ProcessGroup group;
    std::vector<Compressed> compressed;
    std::vector<Exact> exact;
    Message first;                       ///< uncompressed values, divided; then all left factors
    Message second;                      ///< all right factors
    std::uint32_t* finite = nullptr;     ///< whether each right factor is finite, in the first message's memory
    ParameterMemory::Places beginnings;  ///< offsets of the right factors
    std::optional<Work> work;            ///< the first message's, then the second's
    bool continued = false;
  };

  std::size_t rank_of(std::size_t rows, std::size_t columns) const {
    return std::min({rows, columns, static_cast<std::size_t>(options_.rank)});
  }

  void find_matrices(Exchange& exchange) {
    const GradientBucket& bucket = exchange.bucket;
    const auto add = [&](std::size_t parameter, std::span<float> elements, std::size_t columns) {
      exchange.compressed.push_back(
          {.parameter = parameter,
           .matrix = {.elements = elements.data(), .count = elements.size(), .columns = columns},
           .error = nullptr});
    };
    if (batched_) {
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
        add(bucket.parameters[slot], hooks::floats(gradient), columns);
      } else {
        exchange.exact.push_back({.elements = hooks::floats(gradient), .sent = nullptr});
      }
    }
  }

  /// Adds the previous step's compression errors, and allots places for the new ones.
  void feed_back(Exchange& exchange) {
    if (!options_.error_feedback) return;
    const GradientBucket& bucket = exchange.bucket;
    std::vector<ParameterMemory::Entry> entries;
    std::vector<float*> gradients;
    const auto add = [&](std::size_t parameter, float* gradient, std::size_t count) {
      entries.push_back({.parameter = parameter, .count = count});
      gradients.push_back(gradient);
    };
    for (std::size_t slot = 0; slot < bucket.gradients.size() && batched_; ++slot) {
      const auto gradient = hooks::floats(bucket.gradients[slot]);
      add(bucket.parameters[slot], gradient.data(), gradient.size());
    }
    for (const Compressed& part : exchange.compressed) {
      if (!batched_) add(part.parameter, part.matrix.elements, part.matrix.count);
    }
    const ParameterMemory::Places errors = errors_.take(bucket, entries);
    std::vector<kernels::Piece> pieces;
    for (std::size_t i = 0; i < entries.size(); ++i) {
      if (errors.kept[i] == nullptr) continue;
      pieces.push_back({.from = errors.kept[i], .to = gradients[i], .count = entries[i].count});
    }
    kernels::add(exchange.launcher(), pieces);
    // the errors of a batched bucket are consecutive and belong to its one matrix
    for (std::size_t i = 0; i < exchange.compressed.size(); ++i) exchange.compressed[i].error = errors.now[i];
  }

  /// Allots memory for the messages. The right factors stay in place, to begin the next step.
  void allot(Exchange& exchange) {
    std::size_t floats = 0;
    std::vector<ParameterMemory::Entry> entries;
    for (const Exact& part : exchange.exact) floats += part.elements.size();
    for (const Compressed& part : exchange.compressed) {
      const std::size_t rank = rank_of(part.matrix.rows(), part.matrix.columns);
      floats += part.matrix.rows() * rank;
      entries.push_back({.parameter = part.parameter, .count = part.matrix.columns * rank});
    }
    const std::size_t flags = exchange.compressed.size() * sizeof(std::uint32_t);
    const std::shared_ptr<void> memory = messages_.take(exchange.bucket, floats * sizeof(float) + flags);
    auto* place = static_cast<float*>(memory.get());
    exchange.first = {.memory = memory, .begin = place, .count = floats};
    exchange.finite = reinterpret_cast<std::uint32_t*>(place + floats);
    exchange.beginnings = factors_.take(exchange.bucket, entries);
    exchange.second.memory = exchange.beginnings.memory;
    for (Exact& part : exchange.exact) {
      part.sent = place;
      place += part.elements.size();
    }
    for (std::size_t i = 0; i < exchange.compressed.size(); ++i) {
      Compressed& part = exchange.compressed[i];
      const std::size_t rank = rank_of(part.matrix.rows(), part.matrix.columns);
      part.left = {.data = place, .length = part.matrix.rows(), .columns = rank};
      part.right = {.data = exchange.beginnings.now[i], .length = part.matrix.columns, .columns = rank};
      place += part.left.count();
      if (i == 0) exchange.second.begin = part.right.data;
      exchange.second.count += part.right.count();
    }
  }

  /// The last step's factor, which is equal on all ranks, or a random one.
  void begin_right(Exchange& exchange) {
    std::vector<kernels::Beginning> beginnings;
    for (std::size_t i = 0; i < exchange.compressed.size(); ++i) {
      const Compressed& part = exchange.compressed[i];
      // each draw of each parameter has its own seeds, with room for one per column
      const std::uint64_t seed = options_.seed + (draws_ << 44U) + (part.parameter << 16U);
      const float* const kept = options_.warm_start ? exchange.beginnings.kept[i] : nullptr;
      beginnings.push_back({.factor = part.right, .kept = kept, .seed = seed});
    }
    kernels::begin_factors(exchange.launcher(), beginnings, options_.orthogonalization_epsilon);
    exchange.beginnings.former.clear();
  }

  /// Starts the second operation of all buckets in order: each travels while the next is computed.
  void continue_all() {
    for (const auto& exchange : under_way_) {
      if (exchange->continued) continue;
      exchange->continued = true;
      exchange->bucket.executor->wait_for(*exchange->work);
      if (exchange->compressed.empty()) continue;
      kernels::Executor& launcher = exchange->launcher();
      kernels::orthogonalize(launcher, exchange->factors(&Compressed::left), options_.orthogonalization_epsilon);
      for (const Compressed& part : exchange->compressed) {
        kernels::multiply_transposed(launcher, part.matrix, part.left, part.right);
      }
      exchange->add_up(exchange->second);
    }
  }

  static void finish(Exchange& exchange) {
    TensorExecutor& executor = *exchange.bucket.executor;
    executor.wait_for(*exchange.work);
    std::vector<TensorCopy> copies;
    for (const Exact& part : exchange.exact) {
      copies.push_back({.from = part.sent, .to = part.elements.data(), .count = part.elements.size()});
    }
    executor.copy(copies, DType::float32, DType::float32);
    // a gradient that is not finite, as after too large a loss scale, must not enter the kept state; all ranks have the
    // same factor, and the next step does not begin with it
    kernels::check_finite(exchange.launcher(), exchange.factors(&Compressed::right), exchange.finite);
    const float scale = 1.0F / static_cast<float>(exchange.group.size());
    for (std::size_t i = 0; i < exchange.compressed.size(); ++i) {
      const Compressed& part = exchange.compressed[i];
      kernels::expand(exchange.launcher(), part.left, part.right, scale, part.matrix, part.error, exchange.finite + i);
    }
  }

  const PowerSgdOptions options_;
  const bool batched_;
  hooks::Iteration iteration_;
  std::uint64_t draws_ = 0;  ///< compressed steps since the last forget()
  ParameterMemory errors_;
  ParameterMemory factors_;  ///< right factors; a batched bucket's under its first parameter
  hooks::BucketCopies messages_;
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
