// An operation of a group as c10d's Work: what torch.distributed and its DistributedDataParallel wait for.
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <ddp/work.hpp>

#include <ddp/torch/hand_over.hpp>
#include <ddp/torch/interruptible.hpp>

namespace ddp::torch {

class C10dWork final : public ::c10d::Work {
 public:
  /// @param work nothing: finished at once
  /// @param outputs what the future and result() hold
  /// @param unpack runs when the operation has succeeded, before its end is reported
  static c10::intrusive_ptr<C10dWork> start(int rank, ::c10d::OpType type, std::optional<ddp::Work> work,
                                            std::vector<at::Tensor> outputs, std::function<void()> unpack = {}) {
    auto started = c10::make_intrusive<C10dWork>(rank, type, work, std::move(outputs));
    if (!work) {
      started->complete(nullptr);
      return started;
    }
    if (unpack) {  // inference tensors are written to in inference mode alone, which is the caller's thread's
      started->unpack_ = [mode = c10::InferenceMode::is_enabled(), unpack = std::move(unpack)] {
        const c10::InferenceMode as_caller(mode);
        unpack();
      };
    }
    work->on_finish(
        [ended = started](const ddp::Work&) mutable { hand_over([ended = std::move(ended)] { ended->end(); }); });
    return started;
  }

  /// Use start(): this one does not end.
  C10dWork(int rank, ::c10d::OpType type, std::optional<ddp::Work> work, std::vector<at::Tensor> outputs)
      : ::c10d::Work(rank, type),
        work_(std::move(work)),
        outputs_(std::move(outputs)),
        future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()))) {}

  bool isCompleted() override {
    if (work_ && work_->done()) end();  // done() takes it a step further
    return future_->completed();
  }
  bool isSuccess() const override { return future_->completed() && !future_->hasError(); }

  /// Throws the operation's ddp::Error; Error(timeout) after @p timeout, while the operation goes on.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override {
    if (work_) {
      wait_for_operation(timeout);
      end();
    }
    future_->waitAndThrow();
    return true;
  }
  void synchronize() override {}
  std::vector<at::Tensor> result() override { return outputs_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  void wait_for_operation(std::chrono::milliseconds timeout) const {
    std::optional<Deadline> limit;
    if (timeout > kNoTimeout) limit = Deadline::after(timeout);
    if (ends_soon(limit)) return;
    try {
      interruptible([work = *work_, limit] { limit ? work.wait(*limit) : work.wait(); });
    } catch (const Error&) {
      if (limit) throw;
      if (!work_->done()) throw;  // a backend that hangs: the future would never tell
    }
  }

  /// Most operations do, and need no thread that waits for them.
  bool ends_soon(const std::optional<Deadline>& limit) const {
    constexpr std::chrono::milliseconds kSoon{100};
    const Deadline soon = Deadline::after(kSoon);
    if (limit && limit->when() < soon.when()) return false;
    try {
      work_->wait(soon);
    } catch (const Error&) {
      return work_->done();  // how it has ended, its future tells
    }
    return true;
  }

  /// Of a finished operation. The first one who comes does it.
  void end() {
    if (ended_.exchange(true)) return;
    std::exception_ptr problem;
    if (const auto error = work_->error()) {
      problem = std::make_exception_ptr(*error);
    } else if (unpack_) {
      try {
        unpack_();
      } catch (...) {
        problem = std::current_exception();
      }
    }
    unpack_ = nullptr;
    complete(problem);
  }

  void complete(const std::exception_ptr& problem) {
    finish(problem);  // of the base class, for those who ask it
    if (problem) {
      future_->setError(problem);
    } else {
      future_->markCompleted(c10::IValue(outputs_));
    }
  }

  const std::optional<ddp::Work> work_;
  const std::vector<at::Tensor> outputs_;
  const c10::intrusive_ptr<c10::ivalue::Future> future_;
  std::function<void()> unpack_;
  std::atomic<bool> ended_{false};
};

}  // namespace ddp::torch
