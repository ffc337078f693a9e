#include "reducer/bucket.hpp"

#include <algorithm>
#include <cstring>
#include <map>
#include <new>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "collectives/group_engine.hpp"
#include "reducer/options_check.hpp"

namespace ddp::reducer {

Bucket::Bucket(const std::vector<Parameter>& parameters, const std::vector<std::size_t>& indices,
               const ReducerOptions& options, ProcessGroup& group, std::shared_ptr<TensorExecutor> executor)
    : parameters_(&parameters),
      options_(&options),
      indices_(indices),
      gradient_dtype_(parameters[indices.front()].value.dtype()),
      dtype_(exchanged_as(gradient_dtype_, options)),
      executor_(std::move(executor)),
      sources_(on_cpu() ? 0 : indices.size()) {
  for (std::size_t slot = 0; slot < indices_.size(); ++slot) {
    offsets_.push_back(elements_);
    elements_ += value(slot).numel();
  }
  const auto zeros = [&](DType dtype) {
    const std::size_t bytes = std::max<std::size_t>(elements_ * size_of(dtype), 1);
    std::shared_ptr<void> memory = bucket_memory(bytes, device(), options, group, executor_);
    if (on_cpu()) std::memset(memory.get(), 0, bytes);
    return memory;
  };
  memory_ = zeros(dtype_);
  if (casts() && options.gradient_as_bucket_view) home_ = zeros(gradient_dtype_);
}

bool Bucket::divides() const noexcept {
  if (on_cpu()) return true;
  // what lies in the bucket already would only be read and written for it
  return divides_on_device(dtype_) && (casts() || !options_->gradient_as_bucket_view);
}

void Bucket::copy_in(std::size_t slot, const void* gradient, int divisor) {
  if (!on_cpu()) {
    sources_[slot] = gradient;
    return;
  }
  const TensorCopy copy{.from = gradient, .to = place(slot), .count = value(slot).numel()};
  executor_->copy({&copy, 1}, gradient_dtype_, dtype_, divisor);
}

void Bucket::fill(int divisor) {
  if (on_cpu()) return;
  std::vector<TensorCopy> copies;
  copies.reserve(indices_.size());
  for (std::size_t slot = 0; slot < indices_.size(); ++slot) {
    copies.push_back({.from = sources_[slot], .to = place(slot), .count = value(slot).numel()});
  }
  executor_->copy(copies, gradient_dtype_, dtype_, divides() ? divisor : 1);
}

void Bucket::copy_out(const std::vector<void*>& targets, const std::vector<std::uint8_t>& used) const {
  std::vector<TensorCopy> copies;
  copies.reserve(indices_.size());
  for (std::size_t slot = 0; slot < indices_.size(); ++slot) {
    void* const target = targets[indices_[slot]];
    if (target == nullptr || used[indices_[slot]] == 0) continue;
    copies.push_back({.from = place(slot), .to = target, .count = value(slot).numel()});
  }
  executor_->copy(copies, dtype_, gradient_dtype_);
}

TensorView Bucket::view(std::size_t slot) const {
  if (!home_) return exchanged(slot);
  return {static_cast<std::byte*>(home_.get()) + offsets_[slot] * size_of(gradient_dtype_), gradient_dtype_,
          value(slot).shape(), device()};
}

TensorView Bucket::exchanged(std::size_t slot) const { return {place(slot), dtype_, value(slot).shape(), device()}; }

void Bucket::copy_home(const std::vector<std::uint8_t>& used) const {
  if (!home_) return;
  std::vector<void*> targets(used.size());
  for (std::size_t slot = 0; slot < indices_.size(); ++slot) targets[indices_[slot]] = view(slot).data();
  copy_out(targets, used);
}

void Bucket::move_in(const std::vector<const void*>& gradients) {
  std::vector<TensorCopy> copies;
  copies.reserve(indices_.size());
  for (std::size_t slot = 0; slot < indices_.size(); ++slot) {
    copies.push_back({.from = gradients[slot], .to = view(slot).data(), .count = value(slot).numel()});
  }
  executor_->copy(copies, gradient_dtype_, gradient_dtype_);
}

Work Bucket::launch(ProcessGroup& group, int divisor) const {
  CallOptions options{std::optional<Deadline>{}, memory_};
  options.stream = executor_->stream();
  if (divides()) return group.all_reduce(flat(), ReduceOp::sum, std::move(options));
  // by the backend, before it adds
  if (divisor == group.size()) return group.all_reduce(flat(), ReduceOp::avg, std::move(options));
  options.prescale = 1.0 / divisor;
  return group.all_reduce(flat(), ReduceOp::sum, std::move(options));
}

GradientBucket Bucket::lend(std::size_t index, bool is_last, const ProcessGroup& group) const {
  GradientBucket bucket{.index = index,
                        .is_last = is_last,
                        .buffer = flat(),
                        .parameters = indices_,
                        .memory = memory_,
                        .executor = executor_};
  for (std::size_t slot = 0; slot < indices_.size(); ++slot) bucket.gradients.push_back(exchanged(slot));
  if (on_cpu()) {
    bucket.allocate = host_memory;  // the program's allocator need not serve several threads
    return bucket;
  }
  bucket.program = home_stream(device(), *options_);
  bucket.allocate = [device = device(), options = options_, group = ProcessGroup(group),
                     executor = executor_](std::size_t bytes) mutable {
    std::shared_ptr<void> memory = bucket_memory(bytes, device, *options, group, executor);
    executor->wait_for(executor->now_in(home_stream(device, *options)));  // it is zeroed there
    return memory;
  };
  return bucket;
}

namespace {

constexpr std::align_val_t kBucketAlignment{64};  // a cache line, and the widest vector

std::shared_ptr<void> allocate(std::size_t bytes, Device device, const BucketAllocator& allocator,
                               ProcessGroup& group) {
  if (!allocator) {
    if (device.type == DeviceType::cuda) return group.allocate(bytes);
    return host_memory(bytes);
  }
  std::shared_ptr<void> memory = allocator(bytes, device);
  const bool aligned = reinterpret_cast<std::uintptr_t>(memory.get()) % static_cast<std::size_t>(kBucketAlignment) == 0;
  if (memory && aligned) return memory;
  throw Error{{.code = ErrorCode::unavailable,
               .attempted = fmt::format("allocating {} bytes for a bucket of gradients", bytes),
               .cause = memory ? "the allocator's memory is not aligned to 64 bytes" : "the allocator returned null"}};
}

}  // namespace

std::shared_ptr<void> host_memory(std::size_t bytes) {
  return {::operator new(bytes, kBucketAlignment), [](void* memory) { ::operator delete(memory, kBucketAlignment); }};
}

Stream home_stream(Device device, const ReducerOptions& options) {
  return options.stream.value_or(Stream{.device = device, .handle = nullptr});
}

std::shared_ptr<void> bucket_memory(std::size_t bytes, Device device, const ReducerOptions& options,
                                    ProcessGroup& group, const std::shared_ptr<TensorExecutor>& executor) {
  std::shared_ptr<void> memory = allocate(bytes, device, options.allocator, group);
  if (device.type == DeviceType::cpu || !executor) return memory;
  void* const address = memory.get();
  return {address, [memory = std::move(memory), executor](void* /*the same*/) mutable {
            executor->keep(std::exchange(memory, nullptr));
          }};
}

std::shared_ptr<TensorExecutor> device_executor(const std::vector<Parameter>& parameters, const ReducerOptions& options,
                                                ProcessGroup& group) {
  bool on_device = false;
  bool sparse = false;
  bool converts = options.comm_hook != nullptr;
  for (const Parameter& parameter : parameters) {
    if (!parameter.requires_gradient || parameter.value.device().type == DeviceType::cpu) continue;
    on_device = true;
    sparse = sparse || parameter.sparse_gradient;
    if (parameter.sparse_gradient) continue;
    const DType type = parameter.value.dtype();
    converts = converts || type != exchanged_as(type, options) ||
               (!options.gradient_as_bucket_view && divides_on_device(type));
  }
  collectives::GroupEngine& engine = collectives::GroupEngine::of(group);
  const bool exchanges = group.size() > 1 || options.comm_hook;
  // one rank alone needs it for these, else to move gradients to other buckets only, and may have no backend for its
  // device
  const bool useful = options.gradient_as_bucket_view && engine.lane_of(DeviceType::cuda) != nullptr;
  if (!on_device || (!exchanges && !useful && !sparse)) return nullptr;
  return engine.make_executor(exchanges && converts, Deadline::after(group.timeout()));
}

namespace {

struct OpenBucket {
  std::vector<std::size_t> indices;
  std::size_t size_bytes = 0;
  std::size_t limit = 0;       ///< position in the list of limits
  std::size_t first_seen = 0;  ///< when its kind first came
};

}  // namespace

BucketPlan assign_buckets(std::span<const TensorInfo> tensors, std::span<const std::size_t> size_limits,
                          std::span<const std::size_t> order) {
  if (size_limits.empty() || (!order.empty() && order.size() != tensors.size())) {
    throw Error{
        {.code = ErrorCode::invalid_argument,
         .attempted = "assigning parameters to buckets",
         .cause = size_limits.empty() ? "no size limit is given" : "the order names another number of tensors"}};
  }
  BucketPlan closed;
  std::map<std::pair<DType, Device>, OpenBucket> open;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorInfo& tensor = tensors[i];
    const auto [entry, is_new] = open.try_emplace({tensor.dtype, tensor.device});
    OpenBucket& bucket = entry->second;
    if (is_new) bucket.first_seen = i;
    bucket.indices.push_back(order.empty() ? i : order[i]);
    bucket.size_bytes += tensor.size_bytes;
    if (bucket.size_bytes >= size_limits[bucket.limit]) {
      closed.push_back(std::exchange(bucket.indices, {}));
      bucket.size_bytes = 0;
      if (bucket.limit + 1 < size_limits.size()) ++bucket.limit;
    }
  }
  std::vector<OpenBucket> left;
  for (auto& entry : open) {
    if (!entry.second.indices.empty()) left.push_back(std::move(entry.second));
  }
  std::sort(left.begin(), left.end(),
            [](const OpenBucket& a, const OpenBucket& b) { return a.first_seen < b.first_seen; });
  for (OpenBucket& bucket : left) closed.push_back(std::move(bucket.indices));
  if (order.empty()) {
    std::sort(closed.begin(), closed.end(), [](const auto& a, const auto& b) {
      return *std::min_element(a.begin(), a.end()) < *std::min_element(b.begin(), b.end());
    });
  }
  return closed;
}

}  // namespace ddp::reducer
