// Numbers of a training loop, combined across all ranks in one exchange: losses, accuracies, rates, extremes.
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
  mean,  ///< of all values, by weight: pass the number of samples that a loss was averaged over
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
/// precision and in rank order: all ranks get the same bits. A NaN makes the result NaN, so that it is noticed. Not
/// synchronized: one thread at a time.
class MetricSet {
 public:
  /// @param metrics equal on all ranks. Throws Error(invalid_argument) for a duplicate name.
  explicit MetricSet(std::vector<Metric> metrics);

  /// @param weight of a mean, >= 0; 0 ignores the value, whatever it is. Other kinds ignore the weight.
  /// Throws Error(invalid_argument) for an unknown name or an invalid weight.
  void add(std::string_view name, double value, double weight = 1.0);

  /// Combines what all ranks have added since the last call, in the constructor's order; nothing for a metric that no
  /// rank has added to, and for a mean without weight. Then starts over. Collective: one all_gather of 16 bytes per
  /// metric plus 8, which costs less than an all_reduce for each kind and keeps the order of additions. Throws
  /// Error(mismatch), on all ranks, if their metrics differ; the group stays usable if they have equally many.
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
