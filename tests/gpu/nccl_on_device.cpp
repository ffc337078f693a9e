// NCCL through libddp on this rank's device: right sums, what issuing an operation costs the processor, and the
// bandwidth of a bucket as nccl-tests count it. Lines of JSON from rank 0; exit status 3 with the error of a group that
// cannot be made.
//
//   nccl_on_device [OPERATIONS]     how many are timed; default 2000
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <stdexcept>
#include <vector>

#include <fmt/format.h>
#include <ddp/ddp.hpp>

#include "cuda/context.hpp"
#include "cuda/driver.hpp"
#include "cuda/stream.hpp"

namespace {

constexpr std::size_t kBucketElements = 25 * ddp::MiB / sizeof(float);
constexpr int kInFlight = 50;  // operations before the device is waited for: NCCL's own queue must not be what is timed

double thread_seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

class Device {
 public:
  explicit Device(int index) : context_(ddp::cuda::PrimaryContext::retain(index)), scope_(*context_) {}

  ddp::CallOptions call() const {
    ddp::CallOptions options;
    options.stream = {{ddp::DeviceType::cuda, context_->device()}, stream_.get()};
    return options;
  }
  ddp::TensorView view(std::size_t count) const {
    return {memory_.pointer(),
            ddp::DType::float32,
            {static_cast<std::int64_t>(count)},
            {ddp::DeviceType::cuda, context_->device()}};
  }
  void write(const std::vector<float>& values) {
    copy(memory_.get(), reinterpret_cast<CUdeviceptr>(values.data()), values.size() * sizeof(float));
  }
  std::vector<float> read(std::size_t count) {
    std::vector<float> values(count);
    copy(reinterpret_cast<CUdeviceptr>(values.data()), memory_.get(), count * sizeof(float));
    return values;
  }
  void wait() { ddp::cuda::check(ddp::cuda::driver().stream_synchronize(stream_.get()), "waiting for the device"); }

 private:
  void copy(CUdeviceptr to, CUdeviceptr from, std::size_t bytes) {
    ddp::cuda::check(ddp::cuda::driver().memcpy_async(to, from, bytes, stream_.get()), "copying to or from the device");
    wait();
  }

  ddp::cuda::ContextPtr context_;
  ddp::cuda::ContextScope scope_;
  ddp::cuda::Stream stream_{context_, ddp::cuda::StreamPriority::normal};
  ddp::cuda::DeviceMemory memory_{context_, kBucketElements * sizeof(float)};
};

void check_sums(ddp::ProcessGroup& group, Device& device, int rank, int size) {
  device.write(std::vector<float>(kBucketElements, static_cast<float>(rank + 1)));
  group.all_reduce(device.view(kBucketElements), ddp::ReduceOp::sum, device.call()).order(*device.call().stream);
  const float expected = static_cast<float>(size) * static_cast<float>(size + 1) / 2;
  for (const float got : device.read(kBucketElements)) {
    if (got != expected) throw std::runtime_error(fmt::format("all_reduce gave {} instead of {}", got, expected));
  }
}

double issue_seconds(ddp::ProcessGroup& group, Device& device, int operations) {
  double total = 0;
  for (int done = 0; done < operations; done += kInFlight) {
    std::vector<ddp::Work> works;
    works.reserve(kInFlight);
    const double start = thread_seconds();
    for (int i = 0; i < kInFlight; ++i) {
      works.push_back(group.all_reduce(device.view(1), ddp::ReduceOp::sum, device.call()));
    }
    total += thread_seconds() - start;
    for (const ddp::Work& work : works) work.wait();
  }
  return total / operations;
}

/// "busbw" of nccl-tests (PERFORMANCE.md there): what each rank's link carries, whatever their number. Bytes per
/// second.
double bus_bandwidth(ddp::ProcessGroup& group, Device& device, int operations) {
  std::vector<ddp::Work> works;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < operations; ++i) {
    works.push_back(group.all_reduce(device.view(kBucketElements), ddp::ReduceOp::sum, device.call()));
  }
  for (const ddp::Work& work : works) work.wait();
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
  const double bytes = static_cast<double>(kBucketElements * sizeof(float)) * operations;
  return bytes / elapsed.count() * 2 * (group.size() - 1) / group.size();
}

}  // namespace

int main(int argc, char** argv) {
  const int operations = argc > 1 ? std::max(kInFlight, std::atoi(argv[1])) / kInFlight * kInFlight : 2000;
  try {
    ddp::World world = ddp::World::init();
    setenv("DDP_BACKEND", "nccl", 1);
    ddp::ProcessGroup group = [&] {
      try {
        return ddp::make_process_group(world);
      } catch (const ddp::Error& error) {
        fmt::print(stderr, "rank {}: {}\n", world.rank(), error.what());
        std::exit(3);
      }
    }();
    const int index = world.device() ? world.device()->index : world.local_rank() % ddp::cuda::device_count();
    Device device(index);
    check_sums(group, device, world.rank(), world.world_size());
    issue_seconds(group, device, kInFlight);  // the first ones start NCCL
    const double seconds = issue_seconds(group, device, operations);
    if (world.rank() == 0) {
      fmt::print("{{\"what\": \"libddp issue all_reduce\", \"ranks\": {}, \"us\": {:.2f}}}\n", world.world_size(),
                 seconds * 1e6);
    }
    if (world.world_size() == 1) return 0;
    bus_bandwidth(group, device, 2);
    const double bandwidth = bus_bandwidth(group, device, operations / kInFlight);
    if (world.rank() == 0) {
      fmt::print("{{\"what\": \"libddp all_reduce of 25 MiB\", \"ranks\": {}, \"busbw_gb_per_s\": {:.1f}}}\n",
                 world.world_size(), bandwidth / 1e9);
    }
    return 0;
  } catch (const std::exception& error) {
    fmt::print(stderr, "nccl_on_device: {}\n", error.what());
    return 1;
  }
}
