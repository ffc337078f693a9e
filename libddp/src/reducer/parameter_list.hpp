// Which parameters a Reducer averages: all that need a gradient, shared ones once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ddp/reducer.hpp>

namespace ddp::reducer {

class ParameterList {
 public:
  static constexpr std::size_t kNone = SIZE_MAX;

  /// Throws Error(invalid_argument), naming the parameter, for what cannot be averaged.
  ParameterList(const std::vector<Parameter>& parameters, const ReducerOptions& options);

  /// Of several names of one shared parameter the first; kNone: has no gradient.
  std::size_t owner(std::size_t index) const { return owner_[index]; }
  /// All that are their own owners, ascending.
  const std::vector<std::size_t>& owners() const noexcept { return owners_; }
  /// Whether all are in the memory of the CPU.
  bool on_cpu() const noexcept { return on_cpu_; }
  /// By parameter: how many names an owner has; 0 of the others.
  const std::vector<std::uint32_t>& names() const noexcept { return names_; }
  /// By owner: how many of its names are in @p indices, each counted once.
  std::vector<std::uint32_t> names_in(std::span<const std::size_t> indices) const;
  /// @p order with shared parameters once, where they came last, and those that never came behind them.
  std::vector<std::size_t> complete_order(std::span<const std::size_t> order) const;

 private:
  std::vector<std::size_t> owner_;
  std::vector<std::size_t> owners_;
  std::vector<std::uint32_t> names_;
  bool on_cpu_ = true;
};

}  // namespace ddp::reducer
