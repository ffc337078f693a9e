// One rank's part of a collective whose result is known: makes the tensors and the Operation, and compares afterwards,
// also the memory around the tensors.
#pragma once

#include "unit/collectives/sample_numbers.hpp"

namespace ddp::collectives::testing {

class CheckedCall {
 public:
  CheckedCall(const Call& call, int size, int rank, std::uint64_t sequence)
      : call_(call), size_(size), rank_(rank), element_bytes_(size_of(call.dtype)) {
    operation_.kind = call.kind;
    operation_.dtype = call.dtype;
    operation_.reduce_op = call.op;
    operation_.prescale = call.prescale;
    operation_.sequence = sequence;
    operation_.count = call.count;
    if (rooted()) operation_.root = call.root;
    if (call.kind == OperationKind::all_gather_v) {
      operation_.counts = part_counts(call, size);
      operation_.count = output_elements();
    }
    if (call.kind == OperationKind::all_to_all) operation_.count = call.count * static_cast<std::size_t>(size);
    make_tensors();
  }
  CheckedCall& operator=(CheckedCall&&) = delete;

  const Operation& operation() const { return operation_; }

  /// Call after the operation ended with ok.
  void check() const {
    EXPECT_TRUE(guards_hold(output_)) << "memory around the output of " << operation_.description();
    if (!call_.in_place) {
      EXPECT_TRUE(guards_hold(input_)) << "memory around the input of " << operation_.description();
      expect_equal(input_, offset(0), own_input(), "input");
    }
    if (output_is_defined()) expect_equal(output_, offset(first_output_), expected_output(), "output");
  }

 private:
  static constexpr std::size_t kGuardBytes = 64;
  static constexpr std::byte kGuard{0x5a};

  bool is_root() const { return rank_ == call_.root; }
  bool rooted() const {
    return call_.kind == OperationKind::broadcast || call_.kind == OperationKind::reduce ||
           call_.kind == OperationKind::gather || call_.kind == OperationKind::scatter;
  }
  bool output_is_defined() const {
    return is_root() || (call_.kind != OperationKind::reduce && call_.kind != OperationKind::gather);
  }
  std::size_t ranks() const { return static_cast<std::size_t>(size_); }
  std::size_t own() const { return static_cast<std::size_t>(rank_); }

  std::size_t input_elements() const {
    switch (call_.kind) {
      case OperationKind::scatter: return is_root() ? call_.count * ranks() : 0;
      case OperationKind::broadcast: return is_root() ? call_.count : 0;
      case OperationKind::reduce_scatter:
      case OperationKind::all_to_all: return call_.count * ranks();
      case OperationKind::all_gather_v: return operation_.counts[own()];
      case OperationKind::barrier: return 0;
      default: return call_.count;
    }
  }
  std::size_t output_elements() const {
    switch (call_.kind) {
      case OperationKind::all_gather:
      case OperationKind::all_to_all: return call_.count * ranks();
      case OperationKind::all_gather_v:
        return std::accumulate(operation_.counts.begin(), operation_.counts.end(), std::size_t{0});
      case OperationKind::gather: return is_root() ? call_.count * ranks() : 0;
      case OperationKind::reduce: return is_root() || call_.in_place ? call_.count : 0;
      case OperationKind::barrier: return 0;
      default: return call_.count;
    }
  }
  std::size_t offset(std::size_t element) const { return kGuardBytes + (call_.shift + element) * element_bytes_; }

  /// Where in the larger of the two tensors the smaller one lies, if in place.
  std::size_t part_of_own() const {
    switch (call_.kind) {
      case OperationKind::all_gather:
      case OperationKind::gather:
      case OperationKind::scatter:
      case OperationKind::reduce_scatter: return own() * call_.count;
      case OperationKind::all_gather_v:
        return std::accumulate(operation_.counts.begin(), operation_.counts.begin() + rank_, std::size_t{0});
      default: return 0;
    }
  }
  bool shares_memory() const {
    if (!call_.in_place || call_.kind == OperationKind::all_to_all) return false;
    return is_root() || (call_.kind != OperationKind::gather && call_.kind != OperationKind::scatter);
  }

  TensorView view(std::vector<std::byte>& memory, std::size_t first, std::size_t elements) const {
    return {memory.data() + offset(first), call_.dtype, {static_cast<std::int64_t>(elements)}};
  }

  void make_tensors() {
    const std::size_t inputs = input_elements();
    const std::size_t outputs = output_elements();
    const std::size_t around = kGuardBytes * 2 + call_.shift * element_bytes_;
    const std::size_t both = std::max(inputs, outputs);
    output_.assign(around + (shares_memory() ? both : outputs) * element_bytes_, kGuard);
    if (shares_memory()) {
      const std::size_t first = part_of_own();
      const std::size_t first_input = inputs < outputs ? first : 0;
      put(output_, first_input, own_input());
      first_output_ = outputs < inputs ? first : 0;
      tensor_elements_ = both;
      // as a group gives an operation in place: both views are the same, also where this rank has nothing to read
      operation_.input = view(output_, first_input, call_.kind == OperationKind::broadcast ? outputs : inputs);
      operation_.output = view(output_, first_output_, outputs);
      return;
    }
    input_.assign(around + inputs * element_bytes_, kGuard);
    put(input_, 0, own_input());
    tensor_elements_ = outputs;
    operation_.input = view(input_, 0, inputs);
    operation_.output = view(output_, 0, outputs);
  }

  bool guards_hold(const std::vector<std::byte>& memory) const {
    const std::size_t elements = &memory == &output_ ? tensor_elements_ : input_elements();
    const std::vector<std::byte> guard(memory.size() - (offset(elements) - offset(0)), kGuard);
    return std::memcmp(memory.data(), guard.data(), offset(0)) == 0 &&
           std::memcmp(memory.data() + offset(elements), guard.data(), memory.size() - offset(elements)) == 0;
  }

  /// @p count elements of @p rank's input from @p first on.
  void append_input(std::vector<std::byte>& bytes, int rank, std::size_t first, std::size_t count) const {
    append(bytes, count, [&](std::size_t i) { return input_number(call_, size_, rank, first + i); });
  }
  void append_reduced(std::vector<std::byte>& bytes, std::size_t first, std::size_t count) const {
    append(bytes, count, [&](std::size_t i) { return reduced_number(call_, size_, first + i); });
  }
  template <class Number>
  void append(std::vector<std::byte>& bytes, std::size_t count, Number&& number) const {
    const std::size_t at = bytes.size();
    bytes.resize(at + count * element_bytes_);
    store_numbers(call_.dtype, bytes.data() + at, count, number);
  }
  std::vector<std::byte> own_input() const {
    std::vector<std::byte> bytes;
    append_input(bytes, rank_, 0, input_elements());
    return bytes;
  }
  void put(std::vector<std::byte>& memory, std::size_t first, const std::vector<std::byte>& values) const {
    if (!values.empty()) std::memcpy(memory.data() + offset(first), values.data(), values.size());
  }

  std::vector<std::byte> expected_output() const {
    std::vector<std::byte> bytes;
    switch (call_.kind) {
      case OperationKind::barrier: break;
      case OperationKind::all_reduce:
      case OperationKind::reduce: append_reduced(bytes, 0, call_.count); break;
      case OperationKind::reduce_scatter: append_reduced(bytes, own() * call_.count, call_.count); break;
      case OperationKind::broadcast: append_input(bytes, call_.root, 0, call_.count); break;
      case OperationKind::scatter: append_input(bytes, call_.root, own() * call_.count, call_.count); break;
      default:
        for (int rank = 0; rank < size_; ++rank) {
          const bool all_to_all = call_.kind == OperationKind::all_to_all;
          const std::size_t count =
              operation_.counts.empty() ? call_.count : operation_.counts[static_cast<std::size_t>(rank)];
          append_input(bytes, rank, all_to_all ? own() * call_.count : 0, count);
        }
    }
    return bytes;
  }

  void expect_equal(const std::vector<std::byte>& memory, std::size_t at, const std::vector<std::byte>& expected,
                    const char* what) const {
    if (expected.empty() || std::memcmp(memory.data() + at, expected.data(), expected.size()) == 0) return;
    const auto different =
        std::mismatch(expected.begin(), expected.end(), memory.begin() + static_cast<std::ptrdiff_t>(at));
    const auto element = static_cast<std::size_t>(different.first - expected.begin()) / element_bytes_;
    FAIL() << what << " " << element << " of rank " << rank_ << " is "
           << load_number(call_.dtype, memory.data() + at + element * element_bytes_) << " instead of "
           << load_number(call_.dtype, expected.data() + element * element_bytes_) << " after "
           << operation_.description() << (call_.in_place ? ", in place" : "");
  }

  Call call_;
  int size_;
  int rank_;
  std::size_t element_bytes_;
  Operation operation_;
  std::vector<std::byte> input_;
  std::vector<std::byte> output_;
  std::size_t first_output_ = 0;
  std::size_t tensor_elements_ = 0;
};

}  // namespace ddp::collectives::testing
