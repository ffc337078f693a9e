// A hook that averages in integers, whose sums do not depend on the order of the terms.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <vector>

#include <fmt/format.h>

#include <ddp/comm_hook.hpp>

#include "base/invalid_argument.hpp"

namespace ddp {
namespace {

/// A number is high * 2^-20 + low * 2^-64. A term has 43 bits and a sign in high, 44 bits in low, which leaves room for
/// 2^19 terms in 64 bits.
constexpr double kHighUnits = 0x1p20;
constexpr double kLowUnits = 0x1p64;
constexpr double kTooLarge = 0x1p23;
constexpr std::int64_t kMostLeaves = std::int64_t{1} << 19U;

double load(float value) { return static_cast<double>(value); }
double load(double value) { return value; }
double load(Half value) { return static_cast<double>(to_float(value)); }
double load(BFloat16 value) { return static_cast<double>(to_float(value)); }
void store(float& to, double value) { to = static_cast<float>(value); }
void store(double& to, double value) { to = value; }
void store(Half& to, double value) { to = to_half(static_cast<float>(value)); }
void store(BFloat16& to, double value) { to = to_bfloat16(static_cast<float>(value)); }

/// The sum of a parameter's leaves: high and low of each element, then how many elements could not be added.
using ExactSum = std::vector<std::int64_t>;

template <class T>
void add_elements(ExactSum& sum, const T* values, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const double value = load(values[i]);
    if (!(std::abs(value) < kTooLarge)) {
      ++sum.back();
      continue;
    }
    // conversions truncate: high is rounded toward zero, and low, which has the value's sign, to nearest
    const auto high = static_cast<std::int64_t>(value * kHighUnits);
    const double rest = value - static_cast<double>(high) / kHighUnits;  // exact: multiples of the value's last bit
    sum[2 * i] += high;
    sum[2 * i + 1] += static_cast<std::int64_t>(rest * kLowUnits + std::copysign(0.5, value));
  }
}

template <class T>
void read_elements(const std::int64_t* sum, T* values, std::size_t count, std::int64_t leaves) {
  const bool broken = sum[2 * count] != 0;
  for (std::size_t i = 0; i < count; ++i) {
    __extension__ using Wide = __int128;
    const Wide whole = static_cast<Wide>(sum[2 * i]) * (std::int64_t{1} << 44U) + sum[2 * i + 1];
    store(values[i], broken ? std::nan("") : static_cast<double>(whole) / kLowUnits / static_cast<double>(leaves));
  }
}

/// Calls @p body with the typed memory of a gradient.
template <class Body>
void with_type(const TensorView& gradient, Body&& body) {
  switch (gradient.dtype()) {
    case DType::float32: return body(static_cast<float*>(gradient.data()));
    case DType::float64: return body(static_cast<double*>(gradient.data()));
    case DType::float16: return body(static_cast<Half*>(gradient.data()));
    case DType::bfloat16: return body(static_cast<BFloat16*>(gradient.data()));
    default:
      base::throw_invalid_argument("averaging gradients exactly",
                                   fmt::format("{} is no floating-point type", to_string(gradient.dtype())),
                                   "use no hook for integers");
  }
}

class ExactAverageHook final : public CommHook {
 public:
  std::string name() const override { return "exact average"; }
  bool takes_leaves() const override { return true; }
  void end_step(bool complete) noexcept override {
    if (!complete) leaves_.clear();
  }

  void add_leaf(const GradientBucket& bucket) override {
    for (std::size_t i = 0; i < bucket.parameters.size(); ++i) {
      const TensorView& gradient = bucket.gradients[i];
      Leaves& leaves = leaves_[bucket.parameters[i]];
      leaves.sum.resize(2 * gradient.numel() + 1);
      ++leaves.count;
      with_type(gradient, [&](const auto* values) { add_elements(leaves.sum, values, gradient.numel()); });
    }
  }

  /// All sums of a bucket behind each other, and the number of leaves.
  BucketExchange start(const GradientBucket& bucket, ProcessGroup& group) override {
    add_leaf(bucket);
    auto message = std::make_shared<std::vector<std::int64_t>>();
    message->reserve(2 * bucket.buffer.numel() + bucket.parameters.size() + 1);
    std::int64_t count = 0;
    for (const std::size_t parameter : bucket.parameters) {
      Leaves& leaves = leaves_[parameter];
      count = leaves.count;  // each step adds one to all
      message->insert(message->end(), leaves.sum.begin(), leaves.sum.end());
      leaves.sum.assign(leaves.sum.size(), 0);
      leaves.count = 0;
    }
    message->push_back(count);
    const Work work = group.all_reduce(*message, ReduceOp::sum, {{}, message});
    return [bucket, message, work] {
      work.wait();
      const std::int64_t leaves = message->back();
      if (leaves > kMostLeaves) {
        base::throw_invalid_argument("averaging gradients exactly", fmt::format("there are {} leaves", leaves),
                                     fmt::format("add up to {}", kMostLeaves));
      }
      const std::int64_t* sum = message->data();
      for (const TensorView& gradient : bucket.gradients) {
        const std::size_t elements = gradient.numel();
        with_type(gradient, [&](auto* values) { read_elements(sum, values, elements, leaves); });
        sum += 2 * elements + 1;
      }
    };
  }

 private:
  struct Leaves {
    ExactSum sum;
    std::int64_t count = 0;
  };
  std::map<std::size_t, Leaves> leaves_;  ///< by parameter, which buckets may change
};

}  // namespace

std::shared_ptr<CommHook> exact_average_hook() { return std::make_shared<ExactAverageHook>(); }

}  // namespace ddp
