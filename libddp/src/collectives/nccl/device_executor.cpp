#include "collectives/nccl/device_executor.hpp"

#include <unistd.h>

#include <algorithm>
#include <future>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ddp/error.hpp>
#include <ddp/wait_watch.hpp>

#include "base/errors.hpp"
#include "base/log.hpp"
#include "collectives/backend.hpp"
#include "collectives/nccl/call_monitor.hpp"
#include "collectives/nccl/registered_memory.hpp"
#include "cuda/driver.hpp"
#include "cuda/stream.hpp"
#include "kernels/copies.hpp"
#include "kernels/device/device_executor.hpp"

namespace ddp::collectives::nccl {
namespace {

/// A device's kernels, for all executors of the process. Never unloaded, which would wait for the device.
const kernels::DeviceKernels& kernels_of(const cuda::ContextPtr& context) {
  static std::mutex mutex;
  static auto& loaded = *new std::map<int, std::unique_ptr<const kernels::DeviceKernels>>;
  const std::lock_guard lock(mutex);
  auto& kernels = loaded[context->device()];
  if (!kernels) kernels = std::make_unique<const kernels::DeviceKernels>(context);
  return *kernels;
}

/// As kernels_of(), or null if this build or device has none: then each tensor is copied by itself.
const kernels::DeviceKernels* kernels_if_any(const cuda::ContextPtr& context) {
  try {
    return &kernels_of(context);
  } catch (const Error& error) {
    base::log(base::LogLevel::debug, "gradients on CUDA device {} are moved one by one: {}", context->device(),
              error.what());
    return nullptr;
  }
}

/// The format for arithmetic; raw: none is done.
kernels::Format format_of(DType type) {
  switch (component_of(type)) {
    case DType::float32: return kernels::Format::float32;
    case DType::float64: return kernels::Format::float64;
    case DType::float16: return kernels::Format::float16;
    case DType::bfloat16: return kernels::Format::bfloat16;
    default: return kernels::Format::raw;
  }
}

/// Runs @p call on a thread of its own, since it may wait for the device, until @p deadline at most.
/// @param look called meanwhile, once per @p interval; null: never.
template <class Look, class Call>
auto on_thread(const std::string& attempted, Deadline deadline, const Look& look, Call call,
               std::chrono::milliseconds interval = std::chrono::milliseconds(50)) {
  using Result = decltype(call());
  const auto promise = std::make_shared<std::promise<Result>>();
  auto made = promise->get_future();
  const bool started = BlockingCalls::start([promise, call = std::move(call)] {
    try {
      if constexpr (std::is_void_v<Result>) {
        call();
        promise->set_value();
      } else {
        promise->set_value(call());
      }
    } catch (...) {
      promise->set_exception(std::current_exception());
    }
  });
  while (started) {
    const auto until = look == nullptr ? deadline.when() : std::min(deadline.when(), Deadline::Clock::now() + interval);
    if (made.wait_until(until) == std::future_status::ready) return made.get();
    if (deadline.expired()) break;
    if (look != nullptr) look();
  }
  throw Error{{.code = started ? ErrorCode::timeout : ErrorCode::system,
               .attempted = attempted,
               .cause = started ? "the device did not start it in time" : "no more threads can be started",
               .hint = started ? "work on the device that does not end holds it up" : "see ulimit -u"}};
}

CUdeviceptr address(const void* memory) { return reinterpret_cast<CUdeviceptr>(memory); }

class DeviceExecutor final : public TensorExecutor,
                             public KernelLauncher,
                             public std::enable_shared_from_this<DeviceExecutor> {
 public:
  /// @param kernels may be null.
  DeviceExecutor(cuda::ContextPtr context, const kernels::DeviceKernels* kernels)
      : context_(std::move(context)),
        stream_(context_, cuda::StreamPriority::highest),
        events_(std::make_shared<cuda::EventPool>(context_)) {
    if (kernels != nullptr) launcher_.emplace(*kernels, stream_.get());
  }
  ~DeviceExecutor() override {
    if (process_ == ::getpid()) return;
    // CUDA belongs to the parent alone
    static_cast<void>(new cuda::Stream(std::move(stream_)));
    static_cast<void>(new std::shared_ptr<cuda::EventPool>(std::move(events_)));
    static_cast<void>(new cuda::ContextPtr(std::move(context_)));
  }

  std::optional<Stream> stream() const noexcept override {
    return Stream{.device = {.type = DeviceType::cuda, .index = context_->device()}, .handle = stream_.get()};
  }

  void copy(std::span<const TensorCopy> copies, DType from, DType to, int divisor) override {
    const cuda::ContextScope scope(*context_);
    std::vector<kernels::Piece> pieces;
    pieces.reserve(copies.size());
    // complex numbers are two real ones, and data that only moves is bytes
    const bool moves = from == to && divisor == 1;
    if (!moves) check_kernels();
    if (divisor != 1) check_division(from);
    std::vector<kernels::Part> zeros;
    const std::size_t parts = moves ? size_of(from) : size_of(from) / size_of(component_of(from));
    for (const TensorCopy& each : copies) {
      if (each.count == 0) continue;
      if (each.from == nullptr) {
        zeros.push_back({.data = each.to, .count = each.count * size_of(to)});
      } else if (!moves || each.from != each.to) {
        pieces.push_back({.from = each.from, .to = each.to, .count = each.count * parts});
      }
    }
    clear(zeros, to);
    if (pieces.empty()) return;
    if (!launcher_) return copy_bytes(pieces);
    kernels::copy(*launcher_, pieces, moves ? kernels::Format::raw : format_of(from),
                  moves ? kernels::Format::raw : format_of(to), 1.0 / divisor);
  }

  // threads that do not return in time keep what they use

  Bytes read(const void* from, std::size_t bytes, Deadline deadline) override {
    if (bytes == 0) return {};
    const auto what = fmt::format("reading gradients from CUDA device {}", context_->device());
    return on_thread(what, deadline, WaitWatch::current(), [self = shared_from_this(), what, from, bytes] {
      const cuda::ContextScope scope(*self->context_);
      Bytes copy(bytes);
      cuda::check(cuda::driver().memcpy_async(address(copy.data()), address(from), bytes, self->stream_.get()), what);
      cuda::check(cuda::driver().stream_synchronize(self->stream_.get()), what);
      return copy;
    });
  }
  void write(std::shared_ptr<const Bytes> from, void* to, Deadline deadline) override {
    if (from->empty()) return;
    const auto what = fmt::format("writing gradients to CUDA device {}", context_->device());
    on_thread(what, deadline, WaitWatch::current(), [self = shared_from_this(), what, from = std::move(from), to] {
      const cuda::ContextScope scope(*self->context_);
      cuda::check(cuda::driver().memcpy_async(address(to), address(from->data()), from->size(), self->stream_.get()),
                  what);
      self->keep(from);
    });
  }

  kernels::Executor& launcher() override {
    check_kernels();
    return *launcher_;
  }

  void wait_for(const Work& work) override { work.order(*stream()); }
  void wait_for(const Moment& moment) override {
    const cuda::ContextScope scope(*context_);
    stream_.wait(static_cast<const cuda::Event*>(moment.get())->get());
  }

  Moment now_in(const Stream& other) override {
    const cuda::ContextScope scope(*context_);
    cuda::Event event = events_->take();
    event.record(static_cast<CUstream>(other.handle));
    return {new cuda::Event(std::move(event)), [events = events_](const cuda::Event* used) {
              events->give_back(std::move(*const_cast<cuda::Event*>(used)));
              delete used;
            }};
  }

  void hold_back(const Stream& other) override {
    const Moment moment = now_in(*stream());
    const cuda::ContextScope scope(*context_);
    cuda::Stream::borrow(static_cast<CUstream>(other.handle))
        .wait(static_cast<const cuda::Event*>(moment.get())->get());
  }

  void keep(std::shared_ptr<const void> memory) noexcept override {
    if (process_ == ::getpid()) {
      try {
        const cuda::ContextScope scope(*context_);
        cuda::Event over(context_);
        over.record(stream_.get());
        return KeptMemory::until(std::move(memory), context_, std::move(over));
      } catch (const std::exception& error) {
        base::log(base::LogLevel::warning, "memory of gradients on CUDA device {} is never freed: {}",
                  context_->device(), error.what());
      }
    }
    static_cast<void>(new std::shared_ptr<const void>(std::move(memory)));
  }

 private:
  /// @param tensors of elements @p type, with counts in bytes
  void clear(std::span<kernels::Part> tensors, DType type) {
    if (tensors.empty()) return;
    if (launcher_) {
      const std::vector<std::byte> element(std::min<std::size_t>(size_of(type), sizeof(std::uint64_t)));
      for (kernels::Part& each : tensors) each.count /= element.size();
      return kernels::fill(*launcher_, tensors, element);
    }
    for (const kernels::Part& each : tensors) {
      cuda::check(cuda::driver().memset_d8_async(address(each.data), 0, each.count, stream_.get()),
                  "clearing gradients on a CUDA device");
    }
  }
  void copy_bytes(std::span<const kernels::Piece> pieces) {
    for (const kernels::Piece& piece : pieces) {
      cuda::check(cuda::driver().memcpy_async(address(piece.to), address(piece.from), piece.count, stream_.get()),
                  "copying gradients on a CUDA device");
    }
  }
  void check_kernels() const {
    if (launcher_) return;
    base::throw_invalid_argument("converting gradients on a CUDA device", "its executor was made to copy only",
                                 "ask for one that converts");
  }
  static void check_division(DType type) {
    if (format_of(type) != kernels::Format::raw) return;
    base::throw_invalid_argument(fmt::format("dividing {} on a CUDA device", to_string(type)), "no kernel does that",
                                 "let the exchange divide");
  }

  const pid_t process_ = ::getpid();
  cuda::ContextPtr context_;
  cuda::Stream stream_;
  std::shared_ptr<cuda::EventPool> events_;
  std::optional<kernels::DeviceExecutor> launcher_;  ///< runs kernels; empty: it only copies
};

}  // namespace

std::shared_ptr<TensorExecutor> make_device_executor(int device, const std::string& group, bool converts,
                                                     Deadline deadline, const Backend::Pause& pause) {
  const auto what = fmt::format("preparing to move gradients on CUDA device {} for group '{}'", device, group);
  const auto make = [device, converts]() -> std::shared_ptr<TensorExecutor> {
    const cuda::ContextPtr context = cuda::PrimaryContext::retain(device);
    const cuda::ContextScope scope(*context);
    return std::make_shared<DeviceExecutor>(context, converts ? &kernels_of(context) : kernels_if_any(context));
  };
  return on_thread(what, deadline, pause, make, std::chrono::milliseconds(0));
}

}  // namespace ddp::collectives::nccl
