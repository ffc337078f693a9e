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

  /// The first of several names of one shared parameter; kNone: has no gradient.
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

// ---- Refuses wrong calls of a Reducer, in words for the program's author.

/// Thread-safe. All throw Error(invalid_argument).
class CallCheck {
 public:
  /// The arguments stay where they are.
  CallCheck(const std::vector<Parameter>& parameters, const ReducerOptions& options, const ParameterList& list)
      : parameters_(parameters), options_(options), list_(list) {}

  /// For a parameter that has a gradient.
  std::size_t owner_of(std::size_t index, const char* attempted) const;
  /// Parameters that are given as unused.
  void unused(std::span<const std::size_t> indices) const;
  /// @param own where the gradient is if @p given is null.
  void gradient(std::size_t index, const void* own, const TensorView* given) const;
  /// The stream that computes a gradient.
  void producer(std::size_t index, const Stream& producer) const;
  /// Where a gradient is placed between steps; without memory: nowhere.
  void place(std::size_t index, bool in_step, const TensorView& gradient) const;
  /// A mark outside a step.
  [[noreturn]] void throw_outside(std::size_t index) const;
  /// A mark too many. @param needed how many there are to be.
  [[noreturn]] void throw_excess(std::size_t index, std::uint32_t needed) const;

 private:
  [[noreturn]] void refuse_mark(std::size_t index, std::string cause, std::string hint) const;

  const std::vector<Parameter>& parameters_;
  const ReducerOptions& options_;
  const ParameterList& list_;
};

}  // namespace ddp::reducer
