// An operation of a group as c10d's Work, which torch.distributed and its DistributedDataParallel wait for.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/core/ivalue.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <ddp/process_group.hpp>
#include <ddp/torch/device_streams.hpp>
#include <ddp/torch/tensor.hpp>
#include <ddp/work.hpp>

namespace ddp::torch {

/// On CPU tensors, wait() blocks, and the future completes when the operation ends. On a CUDA device, wait() blocks the
/// calling thread's current stream, not the host, unless it is given a time; the future is complete at once, with an
/// event after the operation. If an operation fails later, wait() with a time, isCompleted() with exception(), and
/// later operations report it.
class C10dWork final : public ::c10d::Work {
 public:
  /// A copy to make after an operation.
  struct Copy {
    at::Tensor to, from;
    void make() const {
      const at::NoGradGuard no_grad;
      at::Tensor{to}.copy_(from.view(to.sizes()));
    }
  };

  /// @param work empty: already finished
  /// @param device of the tensors, if it has streams
  /// @param outputs values of the future and of result()
  /// @param copies made once the operation has succeeded, before its end is reported
  /// @param last for CPU tensors: runs after the copies
  static c10::intrusive_ptr<C10dWork> start(int rank, ::c10d::OpType type, std::optional<ddp::Work> work,
                                            std::optional<at::Device> device, std::vector<at::Tensor> outputs,
                                            std::vector<Copy> copies = {}, std::function<void()> last = {}) {
    auto started = c10::make_intrusive<C10dWork>(rank, type, work, device, std::move(outputs));
    if (!work) {
      started->finish();
      return started;
    }
    if (!copies.empty() && device) {
      started->copy_behind(copies);
    } else if (!copies.empty() || last) {
      // only inference mode may write to inference tensors, so take over the caller's mode
      started->at_end_ = [mode = c10::InferenceMode::is_enabled(), copies = std::move(copies), last = std::move(last)] {
        const c10::InferenceMode as_caller(mode);
        for (const Copy& copy : copies) copy.make();
        if (last) last();
      };
    }
    work->on_finish(
        [ended = started](const ddp::Work&) mutable { hand_over([ended = std::move(ended)] { ended->end(); }); });
    return started;
  }

  /// Use start(): an object made here never completes.
  C10dWork(int rank, ::c10d::OpType type, std::optional<ddp::Work> work, std::optional<at::Device> device,
           std::vector<at::Tensor> outputs)
      : ::c10d::Work(rank, type),
        work_(std::move(work)),
        device_(device),
        outputs_(std::move(outputs)),
        future_(c10::make_intrusive<c10::ivalue::Future>(
            c10::ListType::create(c10::TensorType::get()),
            device ? std::vector<c10::Device>{*device} : std::vector<c10::Device>{})) {
    if (!work_) mark_completed();
  }

  bool isCompleted() override {
    if (work_ && !work_->done()) return false;  // done() also advances it
    if (copied_ && !copied_->query()) return false;
    if (work_) end();
    return device_ || future_->completed();
  }
  bool isSuccess() const override {
    if (device_) return !work_ || (work_->done() && !work_->error());
    return future_->completed() && !future_->hasError();
  }

  /// Throws the operation's ddp::Error if it has already failed; Error(timeout) after @p timeout, while the operation
  /// continues.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override {
    if (device_) {
      synchronize();
      if (timeout <= kNoTimeout) return true;
    }
    if (work_) {
      wait_for_operation(timeout);
      end();
    }
    if (!device_) {
      future_->waitAndThrow();
    } else if (work_) {
      if (const auto error = work_->error()) throw Error{*error};
      if (copied_) copied_->synchronize();
    }
    return true;
  }
  void synchronize() override {
    if (device_) hold_back(current_stream(*device_));
  }
  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override {
    if (device_ && work_) std::call_once(asked_, [this] { mark_completed_behind(); });
    return future_;
  }

 private:
  // on a CUDA device

  /// Makes later work in @p stream wait for the operation. Blocks until it has started, since ranks may have to connect
  /// first.
  void hold_back(const c10::Stream& stream) const {
    if (work_) work_->order(stream_of(stream));
    if (copied_) copied_->block(stream);
  }

  void copy_behind(const std::vector<Copy>& copies) {
    const c10::Stream stream = side_stream(*device_);
    hold_back(stream);
    const c10::StreamGuard as_current(stream);
    for (const Copy& copy : copies) {
      copy.make();
      keep_for(stream, copy.to);
      keep_for(stream, copy.from);
    }
    copied_.emplace(stream.device_type());
    copied_->record(stream);
  }

  void mark_completed_behind() {
    try {
      const c10::Stream stream = side_stream(*device_);
      hold_back(stream);
      const c10::StreamGuard as_current(stream);  // the future records its event in the current stream
      mark_completed();
    } catch (const std::exception&) {
      future_->setError(std::current_exception());
    }
  }

  // on the host

  void wait_for_operation(std::chrono::milliseconds timeout) const {
    std::optional<Deadline> limit;
    if (timeout > kNoTimeout) limit = Deadline::after(timeout);
    if (ends_soon(limit)) return;
    try {
      interruptible([work = *work_, limit] { limit ? work.wait(*limit) : work.wait(); });
    } catch (const Error&) {
      if (limit) throw;
      if (!work_->done()) throw;  // the backend hangs, so the future would never complete
    }
  }

  /// Most operations end soon, and need no waiting thread.
  bool ends_soon(const std::optional<Deadline>& limit) const {
    constexpr std::chrono::milliseconds kSoon{100};
    const Deadline soon = Deadline::after(kSoon);
    if (limit && limit->when() < soon.when()) return false;
    try {
      work_->wait(soon);
    } catch (const Error&) {
      return work_->done();  // the future reports how it ended
    }
    return true;
  }

  /// Ends a finished operation, once, on whichever thread comes first.
  void end() {
    if (ended_.exchange(true)) return;
    std::exception_ptr problem;
    if (const auto error = work_->error()) {
      problem = std::make_exception_ptr(*error);
    } else if (at_end_) {
      try {
        at_end_();
      } catch (...) {
        problem = std::current_exception();
      }
    }
    at_end_ = nullptr;
    finish(problem);  // sets the base class' state as well
    if (device_) return;
    if (problem) {
      future_->setError(problem);
    } else {
      mark_completed();
    }
  }

  void mark_completed() { future_->markCompleted(c10::IValue(outputs_)); }

  const std::optional<ddp::Work> work_;
  const std::optional<at::Device> device_;
  const std::vector<at::Tensor> outputs_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::once_flag asked_;              ///< a future was requested, on a device
  std::optional<c10::Event> copied_;  ///< on a device: after the copies
  std::function<void()> at_end_;
  std::atomic<bool> ended_{false};
};

// ---- Tensors in the order of their indices, which pairs elements across ranks whatever each rank's memory layout.

/// The tensor that an operation works on: the given one if its memory is in row-major order or the operation has to
/// refuse it, else a copy.
class RowOrder {
 public:
  /// @param reads the operation needs the values. @param writes it changes them; copies() brings them back to the
  /// tensor.
  RowOrder(const at::Tensor& tensor, bool reads, bool writes) : tensor_(tensor) {
    if (tensor.layout() != at::kStrided || tensor.is_contiguous()) return;
    if (!tensor.is_non_overlapping_and_dense() || tensor.is_conj() || tensor.is_neg()) return;
    const at::NoGradGuard no_grad;
    tensor_ = reads ? tensor.contiguous() : at::empty(tensor.sizes(), tensor.options());
    if (writes) copies_.push_back({tensor, tensor_});
  }

  const at::Tensor& tensor() const noexcept { return tensor_; }
  std::vector<C10dWork::Copy> copies() const { return copies_; }

 private:
  at::Tensor tensor_;
  std::vector<C10dWork::Copy> copies_;
};

// ---- The rows of a tensor for each rank of an all_to_all.

/// Throws Error(invalid_argument) unless @p ranks get equally many rows. @param what the tensor's role: input, output
inline void check_dealt(const at::Tensor& tensor, int ranks, const char* what) {
  const std::int64_t rows = tensor.dim() > 0 ? tensor.size(0) : 1;
  if (rows % ranks == 0) return;
  throw_invalid_argument(
      "all_to_all_single",
      std::to_string(rows) + " rows of the " + what + " cannot be dealt to " + std::to_string(ranks) + " ranks equally",
      std::string{"give "} + what + "_split_sizes: how many are for each rank");
}

/// @param splits rows for each rank; empty: equally many
inline std::vector<at::Tensor> dealt_rows(const at::Tensor& tensor, const std::vector<std::int64_t>& splits, int ranks,
                                          const char* what) {
  if (!splits.empty()) return tensor.split_with_sizes(splits);
  check_dealt(tensor, ranks, what);
  return tensor.chunk(ranks);
}

// ---- Lists of tensors, as c10d's operations take them, and the single memory that libddp's take.

/// Memory for one tensor like @p part per rank, one after the other.
inline at::Tensor for_each_rank(const at::Tensor& part, int ranks) {
  std::vector<std::int64_t> shape = part.sizes().vec();
  shape.insert(shape.begin(), ranks);
  return at::empty(shape, part.options());
}

inline std::vector<at::Tensor> joined(const std::vector<at::Tensor>& some, const std::vector<at::Tensor>& others) {
  std::vector<at::Tensor> all = some;
  all.insert(all.end(), others.begin(), others.end());
  return all;
}

/// Copies from @p flat to its @p parts.
inline std::vector<C10dWork::Copy> unpack(const at::Tensor& flat, const std::vector<at::Tensor>& parts) {
  std::vector<C10dWork::Copy> copies;
  for (std::size_t i = 0; i < parts.size(); ++i) copies.push_back({parts[i], flat[static_cast<std::int64_t>(i)]});
  return copies;
}

// ---- c10d's reductions as libddp's.

/// For values like those of @p tensor. Throws Error(invalid_argument) for reductions that libddp lacks.
inline ReduceOp reduce_op(const ::c10d::ReduceOp& op, const at::Tensor& tensor) {
  switch (static_cast<::c10d::ReduceOp::RedOpType>(op)) {
    case ::c10d::ReduceOp::SUM: return ReduceOp::sum;
    case ::c10d::ReduceOp::AVG: return ReduceOp::avg;
    case ::c10d::ReduceOp::PRODUCT: return ReduceOp::product;
    case ::c10d::ReduceOp::MIN: return ReduceOp::min;
    case ::c10d::ReduceOp::MAX: return ReduceOp::max;
    case ::c10d::ReduceOp::BAND:
      if (tensor.scalar_type() == at::kBool) return ReduceOp::min;
      break;
    case ::c10d::ReduceOp::BOR:
      if (tensor.scalar_type() == at::kBool) return ReduceOp::max;
      break;
    default: break;
  }
  throw_invalid_argument("combining " + description_of(tensor), "libddp has no such c10d::ReduceOp",
                         "use SUM, AVG, PRODUCT, MIN or MAX");
}

}  // namespace ddp::torch
