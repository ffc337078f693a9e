// Moves tensors for code that gathers gradients: at once on CPUs, in a stream of its own on a CUDA device, without
// waiting for it.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <span>

#include <ddp/bytes.hpp>
#include <ddp/deadline.hpp>
#include <ddp/tensor_view.hpp>
#include <ddp/work.hpp>

namespace ddp {

/// One tensor's source and destination, which are equal or do not overlap.
struct TensorCopy {
  const void* from;   ///< null: zeros
  void* to;           ///< not null
  std::size_t count;  ///< elements
};

/// On a device, calls enqueue work in stream(), in their order, and return before it is done; on CPUs the work is done
/// when they return, and what is said of streams has no effect. Members throw Error. copy and wait_for: one thread at a
/// time; the others: any thread. If the stream is being captured, the work becomes part of the graph.
class TensorExecutor {
 public:
  /// The work that was in a stream at some time.
  using Moment = std::shared_ptr<const void>;

  TensorExecutor() = default;
  TensorExecutor(const TensorExecutor&) = delete;
  TensorExecutor& operator=(const TensorExecutor&) = delete;
  virtual ~TensorExecutor() = default;

  /// The device's stream; nothing on CPUs.
  virtual std::optional<Stream> stream() const noexcept = 0;

  /// Element by element, to = cast(from / divisor): the quotient is rounded once. Devices multiply by the reciprocal,
  /// which is rounded, too, and can divide only floating-point numbers of 16 bits and more, and complex ones.
  /// Casts are between float32 and float16 or bfloat16.
  virtual void copy(std::span<const TensorCopy> copies, DType from, DType to, int divisor = 1) = 0;

  /// A copy in the CPU's memory of what is there once the work now in stream() is done. Waits for that until @p
  /// deadline at most, like Work::wait_watched.
  virtual Bytes read(const void* from, std::size_t bytes, Deadline deadline) = 0;
  /// Copies from the CPU's memory, in stream(). May have to wait, like read.
  virtual void write(std::shared_ptr<const Bytes> from, void* to, Deadline deadline) = 0;

  /// Later work in stream() waits for the end of @p work; on CPUs the caller does.
  virtual void wait_for(const Work& work) = 0;
  /// Later work in stream() waits for the work that was in another stream.
  virtual void wait_for(const Moment& moment) = 0;
  /// The work that is in @p other now; for wait_for().
  virtual Moment now_in(const Stream& other) = 0;
  /// Later work in @p other waits for the work that is in stream() now.
  virtual void hold_back(const Stream& other) = 0;

  /// Holds @p memory until the work now queued in stream() has finished, without blocking. Leaks it if that cannot be
  /// determined.
  virtual void keep(std::shared_ptr<const void> memory) noexcept = 0;
};

}  // namespace ddp
