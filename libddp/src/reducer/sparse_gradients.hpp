// Gradients of which only some rows are not zero, as those of large embeddings: exchanged as rows instead of in
// buckets, in the CPU's memory, wherever they are.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <ddp/bytes.hpp>
#include <ddp/reducer.hpp>

namespace ddp::reducer {

/// For all parameters with sparse_gradient.
class SparseGradients {
 public:
  /// @param owners of gradients. @p parameters and @p options stay where they are.
  SparseGradients(const std::vector<Parameter>& parameters, const std::vector<std::size_t>& owners,
                  const ReducerOptions& options);

  bool has(std::size_t owner) const { return entries_.contains(owner); }
  /// Throws Error(invalid_argument) for other types and sizes than the parameter's and, on the CPU, for rows that it
  /// does not have.
  void check(std::size_t owner, const SparseGradient& gradient, const char* attempted) const;
  /// A checked gradient, whose memory stays until average() or forget(). Thread-safe.
  /// @param producer computes it on a device; null: the program's stream. @param device null: it is on the CPU.
  void place(std::size_t owner, const SparseGradient& gradient, const Stream* producer, TensorExecutor* device);
  void forget();

  /// Collective, if there are any. Adds what ranks have placed, divided by @p divisor, in their order. With gradients
  /// on a device it waits for these, and the streams that have computed them wait for the result.
  /// Throws Error; invalid_argument on all ranks if one has rows that its parameter does not have.
  void average(ProcessGroup& group, int divisor, const std::shared_ptr<TensorExecutor>& device);
  /// Rows ascending, each once. Valid until the next average().
  SparseGradient result(std::size_t owner) const;

 private:
  struct Entry {
    std::size_t row_elements = 0;
    std::optional<SparseGradient> own;
    std::optional<Stream> producer;     ///< of own, if it is not the program's stream
    TensorExecutor::Moment computed{};  ///< there
    std::vector<std::int64_t> rows;     ///< of the result
    Bytes values;
    std::shared_ptr<void> memory;            ///< of the result on a device: rows, then values
    std::shared_ptr<TensorExecutor> writer;  ///< of what is there
    std::size_t capacity = 0;
    /// Aligned as frameworks' kernels like it.
    std::size_t values_place() const { return (rows.size() * sizeof(std::int64_t) + 255) / 256 * 256; }
  };
  /// For one parameter under way.
  struct Exchange;

  bool on_device(std::size_t owner) const { return parameters_[owner].value.device().type != DeviceType::cpu; }
  std::size_t row_bytes(std::size_t owner) const;
  /// What this rank has, divided. @return what is wrong with its rows, if anything.
  std::string take_own(std::vector<std::shared_ptr<Exchange>>& exchanges, int divisor, TensorExecutor* device,
                       Deadline deadline) const;
  void gather(std::vector<std::shared_ptr<Exchange>>& exchanges, ProcessGroup& group, const std::string& fault) const;
  static void add_up(Exchange& all, DType dtype, Entry& entry);
  void bring_to(ProcessGroup& group, const std::shared_ptr<TensorExecutor>& device, Deadline deadline);

  const std::vector<Parameter>& parameters_;
  const ReducerOptions& options_;
  std::map<std::size_t, Entry> entries_;  ///< by owner
  std::mutex mutex_;                      ///< guards placed gradients
};

}  // namespace ddp::reducer
