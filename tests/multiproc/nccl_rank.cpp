// One rank of a job whose group has NCCL for CUDA tensors. Started by nccl_multiproc over the doubles of CUDA and NCCL.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/ddp.hpp>

#include "cuda/context.hpp"
#include "cuda/cuda_error.hpp"
#include "cuda/driver.hpp"
#include "cuda/memory.hpp"
#include "cuda/stream.hpp"

namespace {

using Clock = std::chrono::steady_clock;

void say(const std::string& text) {
  fmt::print("{}\n", text);
  std::fflush(stdout);
}
void check(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("check failed: " + what);
}

/// Floats on this rank's device, with a stream of the program's that fills them.
class DeviceFloats {
 public:
  DeviceFloats(int device, std::size_t count)
      : context_(ddp::cuda::PrimaryContext::retain(device)),
        stream_(context_, ddp::cuda::StreamPriority::normal),
        memory_(context_, count * sizeof(float)),
        host_(count) {}

  ddp::TensorView view() const {
    return {memory_.pointer(), ddp::DType::float32, {static_cast<std::int64_t>(host_.size())}, device()};
  }
  ddp::CallOptions options() const {
    ddp::CallOptions options;
    options.stream = stream();
    return options;
  }
  ddp::Stream stream() const { return {.device = device(), .handle = stream_.get()}; }
  void fill(float value) {
    std::fill(host_.begin(), host_.end(), value);
    copy(memory_.get(), reinterpret_cast<CUdeviceptr>(host_.data()));
  }
  /// Waits for the program's stream alone.
  bool all_equal(float value) {
    copy(reinterpret_cast<CUdeviceptr>(host_.data()), memory_.get());
    const ddp::cuda::ContextScope scope(*context_);
    ddp::cuda::check(ddp::cuda::driver().stream_synchronize(stream_.get()), "waiting for the program's stream");
    for (const float each : host_) {
      if (each != value) return false;
    }
    return true;
  }

 private:
  ddp::Device device() const { return {.type = ddp::DeviceType::cuda, .index = context_->device()}; }
  void copy(CUdeviceptr to, CUdeviceptr from) {
    const ddp::cuda::ContextScope scope(*context_);
    ddp::cuda::check(ddp::cuda::driver().memcpy_async(to, from, host_.size() * sizeof(float), stream_.get()),
                     "copying");
  }

  ddp::cuda::ContextPtr context_;
  ddp::cuda::Stream stream_;
  ddp::cuda::DeviceMemory memory_;
  std::vector<float> host_;
};

/// Tensors of both kinds of devices, orders among streams, groups of some ranks, wrong devices, a forked child.
void use_group(ddp::World& world) {
  ddp::ProcessGroup group = ddp::make_process_group(world);
  const int size = group.size();
  const float sum = static_cast<float>(size * (size + 1)) / 2;
  const float mine = static_cast<float>(group.rank()) + 1;
  DeviceFloats floats(world.local_rank(), 1000);
  for (int i = 0; i < 5; ++i) {
    floats.fill(mine);
    group.all_reduce(floats.view(), ddp::ReduceOp::sum, floats.options()).order(floats.stream());
    check(floats.all_equal(sum), "an ordered sum");
    floats.fill(mine);
    ddp::CallOptions inside = floats.options();
    inside.in_stream = true;
    const ddp::Work work = group.all_reduce(floats.view(), ddp::ReduceOp::max, inside);
    check(floats.all_equal(static_cast<float>(size)), "a maximum in the program's stream");
    work.wait();
    std::vector<float> on_host(10, mine);
    group.all_reduce(on_host).wait();
    check(on_host == std::vector<float>(10, sum), "a sum of the CPU's tensors");
  }
  std::vector<int> even;
  for (int rank = 0; rank < size; rank += 2) even.push_back(rank);
  if (auto some = group.new_group(even)) {
    floats.fill(1);
    some->all_reduce(floats.view(), ddp::ReduceOp::sum, floats.options()).wait();
    check(floats.all_equal(static_cast<float>(even.size())), "a sum of some ranks");
  }
  try {
    ddp::TensorView elsewhere(floats.view().data(), ddp::DType::float32, {1},
                              {.type = ddp::DeviceType::cuda, .index = world.local_rank() + 1});
    group.all_reduce(elsewhere).wait();
    check(false, "a tensor of another device is refused");
  } catch (const ddp::Error& error) {
    check(error.code() == ddp::ErrorCode::invalid_argument, error.what());
  }
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      group.all_reduce(floats.view()).wait();
      ::_exit(1);
    } catch (const ddp::Error& error) {
      ::_exit(error.code() == ddp::ErrorCode::unavailable ? 0 : 2);
    }
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  check(status == 0, "a forked child is refused");
  group.barrier().wait();
}

/// all_reduces until one fails; then all that are under way must fail with the same error, and a group of others that
/// was made before goes on.
void loop(ddp::World& world, int seconds) {
  ddp::ProcessGroup group = ddp::make_process_group(world);
  DeviceFloats floats(world.local_rank(), 1000);
  floats.fill(1);
  group.all_reduce(floats.view(), ddp::ReduceOp::avg, floats.options()).wait();
  say("READY");
  const auto limit = std::chrono::seconds(seconds);
  for (;;) {
    const auto begin = Clock::now();
    std::vector<ddp::Work> works;
    for (int i = 0; i < 3; ++i) {
      ddp::CallOptions options = floats.options();
      options.deadline = ddp::Deadline::after(limit);
      works.push_back(group.all_reduce(floats.view(), ddp::ReduceOp::avg, options));
    }
    try {
      for (const ddp::Work& work : works) work.wait();
    } catch (const ddp::Error& error) {
      say(fmt::format("WAITED {:.3f}", std::chrono::duration<double>(Clock::now() - begin).count()));
      for (const ddp::Work& work : works) {
        while (!work.done()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        const auto its = work.error();
        check(!its || std::string(its->what()) == error.what(), "all fail with one error");
      }
      throw;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

void run(const std::string& scenario, const std::string& argument) {
  ddp::World world = ddp::World::init();
  if (scenario == "use") return use_group(world);
  if (scenario == "loop") return loop(world, std::stoi(argument));
  if (scenario == "old" && world.rank() == 1) ::setenv("FAKE_NCCL_VERSION", "21805", 1);
  if (scenario == "old") return use_group(world);
  if (scenario == "cpu") {
    ddp::ProcessGroup group = ddp::make_process_group(world);
    std::vector<float> on_host(10, 1);
    group.all_reduce(on_host).wait();
    float nowhere = 0;
    group.all_reduce({&nowhere, ddp::DType::float32, {1}, {.type = ddp::DeviceType::cuda, .index = 0}}).wait();
  }
}

}  // namespace

int main(int count, char** arguments) {
  try {
    run(count > 1 ? arguments[1] : "", count > 2 ? arguments[2] : "");
  } catch (const ddp::Error& error) {
    say(fmt::format("ERROR code={} ranks=[{}] {}", to_string(error.code()), fmt::join(error.ranks(), ","),
                    error.what()));
    return 3;
  } catch (const std::exception& error) {
    say(error.what());
    return 1;
  }
  say("DONE");
}
