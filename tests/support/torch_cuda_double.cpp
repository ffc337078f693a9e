// CUDA for a PyTorch built without it, over the double of CUDA's driver (tests/support/fake_cuda): devices, streams,
// events, memory, and the few operations that tests with torch.distributed need. Device memory is the host's, so that
// work in a stream is PyTorch's own CPU work, in the stream's order. torch_cuda_double.py loads it; DDP_CUDA_LIBRARY
// names the double.
#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include "torch_cuda_memory.hpp"

namespace {

using torch_cuda::call;
using torch_cuda::InContext;
using torch_cuda::kDevices;
using torch_cuda::must;

void* make_stream() {
  constexpr unsigned kNonBlocking = 1;
  void* stream = nullptr;
  must("cuStreamCreateWithPriority", &stream, kNonBlocking, 0);
  return stream;
}

// devices, streams and events; a stream's number is its address, and 0 is the default stream

thread_local c10::DeviceIndex current_device = 0;
thread_local std::array<c10::StreamId, kDevices> current_streams{};

void* handle_of(const c10::Stream& stream) { return reinterpret_cast<void*>(stream.id()); }

c10::Stream stream_on(c10::DeviceIndex index, void* handle) {
  return c10::Stream(c10::Stream::UNSAFE, c10::Device(c10::kCUDA, index), reinterpret_cast<c10::StreamId>(handle));
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::kCUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {c10::kCUDA, std::exchange(current_device, device.index())};
  }
  c10::Device getDevice() const override {
    static const bool there = deviceCount() > 0;
    TORCH_CHECK(there, "CUDA error: no CUDA-capable device is detected");  // as PyTorch without a driver
    return {c10::kCUDA, current_device};
  }
  void setDevice(c10::Device device) const override { current_device = device.index(); }
  void uncheckedSetDevice(c10::Device device) const noexcept override { current_device = device.index(); }
  c10::DeviceIndex deviceCount() const noexcept override {
    int count = 0;
    call("cuInit", 0U);
    call("cuDeviceGetCount", &count);
    return static_cast<c10::DeviceIndex>(count);
  }

  c10::Stream getStream(c10::Device device) const override {
    const auto index = device.has_index() ? device.index() : current_device;
    return stream_on(index, reinterpret_cast<void*>(current_streams.at(static_cast<std::size_t>(index))));
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream_on(device.index(), nullptr); }
  c10::Stream getNewStream(c10::Device device, int /*priority*/) const override {
    const InContext context(device.index());
    return stream_on(device.index(), make_stream());
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool /*high*/) const override {
    static std::mutex mutex;
    static std::array<std::vector<void*>, kDevices> pools;
    static std::size_t next = 0;
    const std::lock_guard lock(mutex);
    std::vector<void*>& pool = pools.at(static_cast<std::size_t>(device.index()));
    const InContext context(device.index());
    while (pool.size() < 3) pool.push_back(make_stream());
    return stream_on(device.index(), pool[next++ % pool.size()]);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    auto& current = current_streams.at(static_cast<std::size_t>(stream.device_index()));
    return stream_on(stream.device_index(), reinterpret_cast<void*>(std::exchange(current, stream.id())));
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return handle_of(stream); }
  bool queryStream(const c10::Stream& stream) const override {
    const InContext context(stream.device_index());
    return call("cuStreamQuery", handle_of(stream)) == 0;
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    const InContext context(stream.device_index());
    must("cuStreamSynchronize", handle_of(stream));
  }

  void record(void** event, const c10::Stream& stream, c10::DeviceIndex /*device*/,
              c10::EventFlag /*flag*/) const override {
    const InContext context(stream.device_index());
    if (*event == nullptr) must("cuEventCreate", event, 0U);
    must("cuEventRecord", *event, handle_of(stream));
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    const InContext context(stream.device_index());
    must("cuStreamWaitEvent", handle_of(stream), event, 0U);
  }
  bool queryEvent(void* event) const override {
    const InContext context(current_device);
    return event == nullptr || call("cuEventQuery", event) == 0;
  }
  void synchronizeEvent(void* event) const override {
    const InContext context(current_device);
    must("cuEventSynchronize", event);
  }
  void destroyEvent(void* event, c10::DeviceIndex /*device*/) const noexcept override {
    if (event != nullptr) call("cuEventDestroy_v2", event);
  }
  void recordDataPtrOnStream(const c10::DataPtr& data, const c10::Stream& stream) const override {
    if (data.get_deleter() != &torch_cuda::free_block) return;
    auto* const block = static_cast<torch_cuda::Block*>(data.get_context());
    if (block->stream != handle_of(stream)) block->others.insert(handle_of(stream));
  }
};
C10_REGISTER_GUARD_IMPL(CUDA, Guard)

/// Makes autograd mind CUDA streams. Registered under the name by which PyTorch looks for it, once, before anything has
/// asked for it.
using namespace at;
struct CUDAHooks final : CUDAHooksInterface {
  explicit CUDAHooks(CUDAHooksArgs /*none*/) {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex /*device*/) const override { return true; }
  void init() const override {}
  DeviceIndex deviceCount() const override { return Guard{}.deviceCount(); }
  int getNumGPUs() const override { return Guard{}.deviceCount(); }
  /// The host's memory is all alike here.
  Allocator* getPinnedMemoryAllocator() const override { return c10::GetAllocator(c10::kCPU); }
  bool isPinnedPtr(const void* /*memory*/) const override { return true; }
  DeviceIndex current_device() const override { return current_device_of_thread(); }
  DeviceIndex getCurrentDevice() const override { return current_device_of_thread(); }
  void setCurrentDevice(DeviceIndex device) const override { Guard{}.setDevice({kCUDA, device}); }

 private:
  static DeviceIndex current_device_of_thread() { return Guard{}.getDevice().index(); }
};
REGISTER_CUDA_HOOKS(CUDAHooks);

/// Allocates on the current device, in its current stream.
struct StreamAllocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    const c10::DeviceIndex device = current_device;
    void* const stream = reinterpret_cast<void*>(current_streams.at(static_cast<std::size_t>(device)));
    torch_cuda::free_blocks().give_back_those_of(device, stream);
    const InContext context(device);
    std::uint64_t address = 0;
    must("cuMemAllocAsync", &address, std::max<std::size_t>(bytes, 1), stream);
    return {reinterpret_cast<void*>(address),
            new torch_cuda::Block{.device = device, .address = address, .stream = stream}, &torch_cuda::free_block,
            c10::Device(c10::kCUDA, device)};
  }
  void copy_data(void*, const void*, std::size_t) const override { TORCH_CHECK(false, "not there"); }
};
StreamAllocator allocator;

// operations

c10::Stream current_stream(const at::Tensor& tensor) { return Guard{}.getStream(tensor.device()); }

/// The same memory for CPU work.
at::Tensor on_host(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return tensor;
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(), at::TensorOptions(tensor.scalar_type()));
}

std::atomic<std::int64_t> enqueued{0};

void enqueue(const c10::Stream& stream, std::function<void()> work) {
  ++enqueued;
  const InContext context(stream.device_index());
  using Work = std::function<void()>;
  void (*const run)(void*) = [](void* argument) {
    const at::AutoDispatchBelowADInplaceOrView no_autograd;
    (*static_cast<Work*>(argument))();
  };
  void (*const drop)(void*) = [](void* argument) { delete static_cast<Work*>(argument); };
  must("fake_cuda_enqueue", handle_of(stream), run, drop, static_cast<void*>(new Work(std::move(work))));
}

constexpr auto kKeys = c10::DispatchKeySet(c10::DispatchKey::CUDA);

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> type, std::optional<at::Layout> /*layout*/,
                 std::optional<at::Device> device, std::optional<bool> /*pinned*/,
                 std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(size, &allocator, kKeys, type.value_or(at::kFloat), format);
}
at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef strides, std::optional<at::ScalarType> type,
                         std::optional<at::Layout> /*layout*/, std::optional<at::Device> device,
                         std::optional<bool> /*pinned*/) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(size, strides, &allocator, kKeys, type.value_or(at::kFloat));
}

/// One tensor is on a device, or both are on the same. The host waits for what it gives or gets.
at::Tensor& copy(at::Tensor& to, const at::Tensor& from, bool /*non_blocking*/) {
  const c10::Stream stream = current_stream(to.is_cuda() ? to : from);
  enqueue(stream, [to = on_host(to), from = on_host(from)]() mutable { to.copy_(from); });
  if (to.is_cpu() || from.is_cpu()) Guard{}.synchronizeStream(stream);
  return to;
}

/// item(): the host waits.
at::Scalar number_in(const at::Tensor& tensor) { return tensor.cpu().item(); }

/// The same arguments with tensors on a device replaced.
using Replace = at::Tensor (*)(const at::Tensor&);
torch::jit::Stack replaced(const torch::jit::Stack& arguments, Replace replace) {
  torch::jit::Stack others = arguments;
  for (c10::IValue& each : others) {
    if (each.isTensor() && each.toTensor().defined()) each = replace(each.toTensor());
    if (each.isTensorList()) {
      c10::List<at::Tensor> tensors;
      for (const at::Tensor& tensor : each.toTensorVector()) tensors.push_back(replace(tensor));
      each = tensors;
    }
  }
  return others;
}

at::Tensor shape_of(const at::Tensor& tensor) {
  return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta).requires_grad(false));
}

std::optional<at::Device> device_in(const torch::jit::Stack& arguments) {
  for (const c10::IValue& each : arguments) {
    if (each.isTensor() && each.toTensor().defined() && each.toTensor().is_cuda()) return each.toTensor().device();
    if (!each.isTensorList()) continue;
    for (const at::Tensor& tensor : each.toTensorVector()) {
      if (tensor.is_cuda()) return tensor.device();
    }
  }
  return std::nullopt;
}

/// Any other operation: results get the shapes that meta tensors give, and their values in the stream.
void compute(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  const auto& schema = operation.schema();
  const torch::jit::Stack arguments = torch::jit::pop(*stack, schema.arguments().size());
  const auto device = device_in(arguments);
  TORCH_CHECK(device, operation.schema(), " is not there on the double of CUDA");
  torch::jit::Stack shapes = replaced(arguments, &shape_of);
  operation.callBoxed(shapes);
  std::vector<at::Tensor> results;
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    TORCH_CHECK(shapes[i].isTensor(), operation.schema(), " returns what is not a tensor");
    const auto* const alias = schema.returns()[i].alias_info();
    if (alias != nullptr && alias->isWrite()) {
      for (std::size_t k = 0; k < arguments.size(); ++k) {
        const auto* const given = schema.arguments()[k].alias_info();
        if (given != nullptr && given->isWrite() && *given == *alias) results.push_back(arguments[k].toTensor());
      }
    } else {
      const at::Tensor shape = shapes[i].toTensor();
      results.push_back(shape.defined()
                            ? at::empty_strided(shape.sizes(), shape.strides(), shape.options().device(*device))
                            : at::Tensor{});
    }
  }
  enqueue(Guard{}.getStream(*device), [operation, values = replaced(arguments, &on_host), results]() mutable {
    operation.callBoxed(values);
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (!results[i].defined()) continue;
      const at::Tensor value = values[i].toTensor();
      at::Tensor memory = on_host(results[i]);
      if (memory.data_ptr() != value.data_ptr()) memory.copy_(value);
    }
  });
  for (const at::Tensor& result : results) stack->emplace_back(result);
}

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("view", &at::native::view);
  library.impl("view_as_real", &at::native::view_as_real);
  library.impl("_reshape_alias", &at::native::_reshape_alias);
  library.impl("copy_", &copy);
  library.impl("_local_scalar_dense", &number_in);
}
TORCH_LIBRARY_IMPL(_, CUDA, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&compute>()); }

/// The timer of PyTorch's DistributedDataParallel: the host's clock, as on the CPU.
struct HostTimer final : c10d::Timer {
  explicit HostTimer(c10::Device /*any*/) {}
  std::optional<std::int64_t> measureDifference(Event start, Event end) override {
    return getTimeRef(end) - getTimeRef(start);
  }
};

// for tests

at::Tensor full(at::IntArrayRef size, const at::Scalar& value, at::ScalarType type, std::int64_t device) {
  const at::Device place(at::kCUDA, static_cast<c10::DeviceIndex>(device));
  return at::empty(size, at::TensorOptions(place).dtype(type)).fill_(value);
}

/// What torch's sharding does to memory in between, which a PyTorch built without CUDA cannot do.
void resize_storage(const at::Tensor& tensor, std::int64_t bytes) {
  const c10::DeviceGuard guard(tensor.device());
  auto* const storage = tensor.storage().unsafeGetStorageImpl();
  storage->set_data_ptr(bytes == 0 ? c10::DataPtr(nullptr, tensor.device())
                                   : allocator.allocate(static_cast<std::size_t>(bytes)));
  storage->set_nbytes(static_cast<std::size_t>(bytes));
}

/// Makes the @p which stream of the device current for this thread; 0: the default stream.
void use_stream(std::int64_t device, std::int64_t which) {
  static std::vector<c10::Stream> streams;
  const c10::Device place(c10::kCUDA, static_cast<c10::DeviceIndex>(device));
  if (streams.empty()) streams.push_back(Guard{}.getDefaultStream(place));
  while (static_cast<std::size_t>(which) >= streams.size()) streams.push_back(Guard{}.getNewStream(place, 0));
  Guard{}.exchangeStream(streams[static_cast<std::size_t>(which)]);
}

void with_current_stream(const char* function, std::int64_t device) {
  const auto index = static_cast<c10::DeviceIndex>(device);
  const InContext context(index);
  must(function, handle_of(Guard{}.getStream(c10::Device(c10::kCUDA, index))));
}
void pause(std::int64_t device) { with_current_stream("fake_cuda_pause_stream", device); }
void resume(std::int64_t device) { with_current_stream("fake_cuda_resume_stream", device); }

TORCH_LIBRARY(cuda_double, library) {
  library.def("full(int[] size, Scalar value, ScalarType type, int device) -> Tensor", &full);
  library.def("resize_storage(Tensor tensor, int bytes) -> ()", &resize_storage);
  library.def("use_stream(int device, int which) -> ()", &use_stream);
  library.def("enqueued() -> int", [] { return enqueued.load(); });  // by all threads
  library.def("pause(int device) -> ()", &pause);
  library.def("resume(int device) -> ()", &resume);
}

}  // namespace

namespace c10d {
C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kCUDA, HostTimer);
}
