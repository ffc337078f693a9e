// Memory of gradients on the CPU or on a device, filled and read by two streams, which nothing waits for until the end:
// so an order among streams that is missing gives wrong numbers.
#pragma once

#include <ddp/ddp.hpp>

#include "cuda/context.hpp"
#include "cuda/driver.hpp"
#include "cuda/stream.hpp"

namespace ddp::test {

using Bytes = std::vector<std::byte>;

class GradientPlace {
 public:
  virtual ~GradientPlace() = default;
  virtual ddp::Device device() const = 0;
  /// Zeroed, behind what is in the first stream. Overwritten as soon as it is freed.
  virtual std::shared_ptr<void> allocate(std::size_t bytes) = 0;
  /// Of a producer, 0 or 1; nothing on the CPU.
  virtual std::optional<ddp::Stream> stream(int producer) const = 0;
  virtual void write(void* to, const Bytes& bytes, int producer) = 0;
  virtual void read(const void* from, std::size_t bytes, int producer) = 0;
  /// What comes later in one producer's stream waits for the other's.
  virtual void order(int earlier, int later) = 0;
  /// All that was read, in the order of the calls.
  virtual const std::deque<Bytes>& finish() = 0;
};

class HostGradients final : public GradientPlace {
 public:
  ddp::Device device() const override { return {}; }
  std::shared_ptr<void> allocate(std::size_t bytes) override {
    std::shared_ptr<void> memory(std::aligned_alloc(64, (bytes + 64) / 64 * 64), &std::free);
    std::memset(memory.get(), 0, bytes);
    return memory;
  }
  std::optional<ddp::Stream> stream(int /*none*/) const override { return std::nullopt; }
  void write(void* to, const Bytes& bytes, int /*at once*/) override {
    if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
  }
  void read(const void* from, std::size_t bytes, int /*at once*/) override {
    Bytes& copy = outputs_.emplace_back(bytes);
    if (bytes > 0) std::memcpy(copy.data(), from, bytes);
  }
  void order(int /*earlier*/, int /*later*/) override {}
  const std::deque<Bytes>& finish() override { return outputs_; }

 private:
  std::deque<Bytes> outputs_;
};

class DeviceGradients final : public GradientPlace {
 public:
  explicit DeviceGradients(int device)
      : context_(cuda::PrimaryContext::retain(device)),
        pinned_(context_, kPinnedBytes),
        memory_(std::make_shared<cuda::DeviceMemory>(context_, kDeviceBytes)) {
    for (int i = 0; i < 2; ++i) streams_.emplace_back(context_, cuda::StreamPriority::normal);
  }
  ~DeviceGradients() override { wait(); }

  ddp::Device device() const override { return {.type = ddp::DeviceType::cuda, .index = context_->device()}; }
  std::shared_ptr<void> allocate(std::size_t bytes) override {
    const std::size_t taken = (bytes / kAlignment + 1) * kAlignment;
    if (taken > memory_->size_bytes() - allocated_) throw std::runtime_error("more buckets than there is memory for");
    auto* const address = static_cast<std::byte*>(memory_->pointer()) + std::exchange(allocated_, allocated_ + taken);
    const cuda::ContextScope scope(*context_);
    cuda::check(cuda::driver().memset_d8_async(reinterpret_cast<CUdeviceptr>(address), 0, taken, at(0)), "zeroing");
    // who frees it too early reads this: the double's device has the host's memory
    return {address, [memory = memory_, bytes](void* freed) { std::memset(freed, 0xab, bytes); }};
  }
  std::optional<ddp::Stream> stream(int producer) const override {
    return ddp::Stream{.device = device(), .handle = at(producer)};
  }
  void write(void* to, const Bytes& bytes, int producer) override {
    if (bytes.empty()) return;
    const std::span<std::byte> from = take(bytes.size());
    std::ranges::copy(bytes, from.begin());
    copy(reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from.data()), bytes.size(), producer);
  }
  void read(const void* from, std::size_t bytes, int producer) override {
    const std::span<std::byte> to = reads_.emplace_back(take(bytes));
    if (bytes > 0) copy(reinterpret_cast<CUdeviceptr>(to.data()), reinterpret_cast<CUdeviceptr>(from), bytes, producer);
  }
  void order(int earlier, int later) override {
    const cuda::ContextScope scope(*context_);
    cuda::Event event(context_);
    event.record(at(earlier));
    streams_[static_cast<std::size_t>(later)].wait(event.get());
  }
  const std::deque<Bytes>& finish() override {
    wait();
    for (; outputs_.size() < reads_.size();) {
      const std::span<std::byte> read = reads_[outputs_.size()];
      outputs_.emplace_back(read.begin(), read.end());
    }
    return outputs_;
  }

 private:
  std::span<std::byte> take(std::size_t bytes) {
    if (bytes > pinned_.bytes().size() - used_) throw std::runtime_error("more steps than there is memory for");
    used_ += bytes;
    return pinned_.bytes().subspan(used_ - bytes, bytes);
  }
  CUstream at(int producer) const { return streams_[static_cast<std::size_t>(producer)].get(); }
  void copy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes, int producer) {
    const cuda::ContextScope scope(*context_);
    cuda::check(cuda::driver().memcpy_async(to, from, bytes, at(producer)), "copying");
  }
  void wait() {
    const cuda::ContextScope scope(*context_);
    for (const cuda::Stream& each : streams_) cuda::driver().stream_synchronize(each.get());
  }

  static constexpr std::size_t kAlignment = 256;
  static constexpr std::size_t kDeviceBytes = std::size_t{2} << 20U;
  static constexpr std::size_t kPinnedBytes = std::size_t{16} << 20U;
  cuda::ContextPtr context_;
  std::vector<cuda::Stream> streams_;
  cuda::PinnedMemory pinned_;  ///< for what is written and read: copies of other memory would wait for the stream
  std::size_t used_ = 0;
  std::shared_ptr<cuda::DeviceMemory> memory_;  ///< handed out as frameworks do: the driver's calls wait for the device
  std::size_t allocated_ = 0;
  std::vector<std::span<std::byte>> reads_;
  std::deque<Bytes> outputs_;
};

}  // namespace ddp::test
