// Refuses wrong calls of a Reducer, in words for the program's author.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ddp/reducer.hpp>

#include "reducer/parameter_list.hpp"

namespace ddp::reducer {

/// Thread-safe. All throw Error(invalid_argument).
class CallCheck {
 public:
  /// The arguments stay where they are.
  CallCheck(const std::vector<Parameter>& parameters, const ReducerOptions& options, const ParameterList& list)
      : parameters_(parameters), options_(options), list_(list) {}

  /// Of a parameter that has a gradient.
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
