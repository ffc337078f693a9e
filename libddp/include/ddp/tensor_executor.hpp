// Moves tensors for those who gather gradients: on processors at once, on a CUDA device in a stream of its own, without
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

/// One tensor's way from one memory to another. They are the same, or do not overlap.
struct TensorCopy {
  const void* from;   ///< null: zeros
  void* to;           ///< not null
  std::size_t count;  ///< elements
};

/// On a device, work goes into stream() in the order of the calls, which return before it is done; on processors it is
/// done when they return, and what is said of streams does nothing. Members throw Error. copy and wait_for: one thread
/// at a time; the others: any thread. In a captured stream, its work becomes a part of the graph.
class TensorExecutor {
 public:
  /// What had been put into a stream at some time.
  using Moment = std::shared_ptr<const void>;

  TensorExecutor() = default;
  TensorExecutor(const TensorExecutor&) = delete;
  TensorExecutor& operator=(const TensorExecutor&) = delete;
  virtual ~TensorExecutor() = default;

  /// Nothing: on processors.
  virtual std::optional<Stream> stream() const noexcept = 0;

  /// Element by element, to = cast(from / divisor): the quotient is rounded once. On devices it is a product with the
  /// reciprocal, which is rounded, too, and only floating-point numbers of 16 bits and more, and complex ones, can be
  /// divided. Casts are between float32 and float16 or bfloat16.
  virtual void copy(std::span<const TensorCopy> copies, DType from, DType to, int divisor = 1) = 0;

  /// A copy in the CPU's memory of what is there once what is in stream() now is over: for which it waits, until @p
  /// deadline at most, and as Work::wait_watched.
  virtual Bytes read(const void* from, std::size_t bytes, Deadline deadline) = 0;
  /// Copies from the CPU's memory, in stream(). May have to wait, as read.
  virtual void write(std::shared_ptr<const Bytes> from, void* to, Deadline deadline) = 0;

  /// What comes later in stream() waits for the end of @p work; on processors the caller does.
  virtual void wait_for(const Work& work) = 0;
  /// What comes later in stream() waits for what had been put into another one.
  virtual void wait_for(const Moment& moment) = 0;
  /// What has been put into @p other until now; for wait_for().
  virtual Moment now_in(const Stream& other) = 0;
  /// What comes later in @p other waits for what is in stream() now.
  virtual void hold_back(const Stream& other) = 0;

  /// Owns @p memory until the work now queued in stream() has finished, without blocking. Leaks it if that cannot be
  /// determined.
  virtual void keep(std::shared_ptr<const void> memory) noexcept = 0;
};

}  // namespace ddp
