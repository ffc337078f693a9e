// What ranks tell each other at the end of a step: who misses gradients, and which parameters anybody has used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ddp/reducer.hpp>

namespace ddp::reducer {

/// One all_reduce of CPU memory, behind the buckets: 4 bytes, and 4 more for each parameter if its use is asked for.
class StepReport {
 public:
  /// Collective. @param used by parameter, or empty on all ranks.
  void send(ProcessGroup& group, bool misses_gradients, std::span<const std::uint8_t> used);
  /// Throws the error of the exchange.
  void wait();
  /// After wait(), of all ranks.
  bool misses_gradients() const { return sums_->front() != 0; }
  bool used(std::size_t index) const { return (*sums_)[1 + index] != 0; }

 private:
  std::shared_ptr<std::vector<std::int32_t>> sums_;
  std::optional<Work> work_;
};

/// "2 of 4 parameters were not marked ready: 0 'layer0', 2 'layer2'"; empty if @p missing is.
std::string describe_missing(const std::vector<Parameter>& parameters, std::span<const std::size_t> missing);
/// The description of a rank whose backward pass has failed.
inline constexpr auto kGivenUp = "the backward pass has failed, and was given up";

/// Collective. Throws the same Error on all ranks, with the @p descriptions of those that miss gradients, and @p hint
/// unless a rank has given up.
[[noreturn]] void throw_missing(ProcessGroup& group, const std::string& description, std::string hint);

}  // namespace ddp::reducer
