// One operation of a process group as a value: kind and arguments. Backends execute it; its fingerprint shows
// whether two ranks made the same call.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ddp/process_group.hpp>

namespace ddp {

/// The calls of a process group.
enum class OperationKind : std::uint8_t {
  all_reduce,
  broadcast,
  reduce,
  all_gather,
  all_gather_v,
  gather,
  scatter,
  reduce_scatter,
  all_to_all,
  barrier,
  send,
  recv,
};
std::string_view to_string(OperationKind kind) noexcept;  ///< the enumerator's name: "all_reduce"

/// A call of a process group, as its backend receives it.
struct Operation {
  OperationKind kind = OperationKind::barrier;  ///< what was called
  DType dtype = DType::float32;                 ///< of the tensors
  ReduceOp reduce_op = ReduceOp::sum;           ///< of reductions
  /// Factor for each rank's values before they are added. Other than 1 only in sums of floating-point numbers.
  double prescale = 1;
  int root = -1;          ///< of rooted collectives; the peer of send and recv
  std::uint32_t tag = 0;  ///< of send and recv
  /// Elements of one rank's part, or of the whole tensor if there are no parts.
  std::size_t count = 0;
  std::vector<std::size_t> counts{};  ///< for all_gather_v
  TensorView input;                   ///< what is read; equal to output for in-place operations
  TensorView output;                  ///< what is written
  /// Position among the collectives of the group, from 1; 0 for send and recv.
  std::uint64_t sequence = 0;
  /// Owns the memory until the operation is finished; usually null, since the caller owns it.
  std::shared_ptr<const void> keep_alive;
  /// For tensors on a device: the caller's stream, whose earlier work writes the input and reads the output.
  Stream stream{.device = {.type = DeviceType::cuda, .index = 0}, .handle = nullptr};
  bool in_stream = false;  ///< runs in `stream` itself, not in one of the group's

  /// For a transfer: the call that it is part of, such as "all_to_all"; static text, null: none.
  const char* part_of = nullptr;
  std::size_t row = 0;  ///< for such a transfer: elements of a row, if the call has rows

  bool is_transfer() const noexcept {
    return kind == OperationKind::send || kind == OperationKind::recv;
  }  ///< send or recv, as opposed to a collective
  /// Equal on two ranks exactly if (except for hash collisions) their arguments are compatible.
  std::uint64_t fingerprint() const noexcept;
  /// "all_reduce #17 of float32 x 1000, avg": for messages.
  std::string description() const;
};

}  // namespace ddp
