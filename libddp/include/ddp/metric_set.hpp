// Numbers of a training loop, gathered from all ranks in one exchange: losses, accuracies, rates, extremes.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ddp/process_group.hpp>

namespace ddp {

/// How the ranks' values of a metric are combined.
enum class MetricKind : std::uint8_t {
  mean,  ///< of all values, each with its weight: give the number of samples that a loss was averaged over
  sum,
  min,
  max,
};

/// A number that ranks combine.
struct Metric {
  std::string name;                    ///< unique in its set
  MetricKind kind = MetricKind::mean;  ///< how ranks' values combine
};

/// Collects values on each rank, over any number of steps, and combines those of all ranks on request, in double
/// precision and in the order of ranks: all ranks get the same bits. A NaN makes the result NaN, so that it is seen. No
/// thread-safety of its own.
class MetricSet {
 public:
  /// Equal on all ranks. Throws Error(invalid_argument) for a name that is there twice.
  explicit MetricSet(std::vector<Metric> metrics);

  /// @param weight of a mean, >= 0, with 0 the value adds nothing, whatever it is; of the other kinds not looked at.
  /// Throws Error(invalid_argument) for an unknown name or an invalid weight.
  void add(std::string_view name, double value, double weight = 1.0);

  /// What all ranks have added since the last call, in the constructor's order; nothing for what no rank has added, and
  /// for a mean without weight. Starts anew. Collective: one all_gather of 16 bytes a metric and 8 more, which costs
  /// less than an all_reduce for each kind, and keeps the order of additions. Throws Error(mismatch), on all ranks, if
  /// their metrics differ; the group lives on if they have as many.
  std::vector<std::optional<double>> reduce(ProcessGroup& group);

  const std::vector<Metric>& metrics() const noexcept {
    return metrics_;
  }  ///< as given to the constructor, in the order of reduce()

 private:
  struct Collected {
    double value = 0;   ///< a mean's: weighted sum
    double weight = 0;  ///< of the other kinds: 1 once there is a value
  };
  static void combine(MetricKind kind, Collected& into, const Collected& more) noexcept;

  std::vector<Metric> metrics_;
  std::vector<Collected> collected_;
  std::uint64_t fingerprint_;  ///< of names and kinds
};

}  // namespace ddp
