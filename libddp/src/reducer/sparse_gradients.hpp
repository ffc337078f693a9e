// Gradients of which only some rows are not zero, as those of large embeddings: exchanged as rows instead of in
// buckets.
#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include <ddp/bytes.hpp>
#include <ddp/reducer.hpp>

namespace ddp::reducer {

/// Of all parameters with sparse_gradient.
class SparseGradients {
 public:
  /// @param owners of gradients. @p parameters stay where they are.
  SparseGradients(const std::vector<Parameter>& parameters, const std::vector<std::size_t>& owners);

  bool has(std::size_t owner) const { return entries_.contains(owner); }
  /// Throws Error(invalid_argument) for rows that are none of the parameter's, or other types and sizes.
  void check(std::size_t owner, const SparseGradient& gradient, const char* attempted) const;
  /// A checked gradient, whose memory stays until average() or forget(). Thread-safe.
  void place(std::size_t owner, const SparseGradient& gradient);
  void forget();

  /// Collective, if there are any. Adds what ranks have placed, divided by @p divisor, in their order.
  void average(ProcessGroup& group, int divisor);
  /// Rows ascending, each once. Valid until the next average().
  SparseGradient result(std::size_t owner) const;

 private:
  struct Entry {
    std::size_t row_elements = 0;
    std::optional<SparseGradient> own;
    std::vector<std::int64_t> rows;  ///< of the result
    Bytes values;
  };
  /// Of one parameter under way.
  struct Exchange;

  const std::vector<Parameter>& parameters_;
  std::map<std::size_t, Entry> entries_;  ///< by owner
  std::mutex mutex_;                      ///< guards placed gradients
};

}  // namespace ddp::reducer
