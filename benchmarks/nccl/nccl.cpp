// What libddp adds to NCCL, over the doubles of CUDA and NCCL: DDP_CUDA_LIBRARY and DDP_NCCL_LIBRARY name them.
//
//   bench_nccl issue ROUNDS          processor time of the thread that issues an all_reduce, beside bare calls: NCCL
//   launches
//                                    on a thread of its own, with NCCL_COMM_BLOCKING=1 within the call
//   bench_nccl watch libddp|bare     that of the process while an operation takes long, and no thread waits for it
//   bench_nccl lose                  a rank of a job: all_reduces until one fails, and when
//
// Lines of JSON; times are in seconds.
#include <dlfcn.h>
#include <time.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ddp/ddp.hpp>

#include "collectives/nccl/nccl_library.hpp"
#include "cuda/context.hpp"
#include "cuda/driver.hpp"
#include "cuda/stream.hpp"

namespace {

namespace nccl = ddp::collectives::nccl;

constexpr int kBatch = 50;
constexpr std::chrono::milliseconds kWatched{1500};

double seconds_of(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Device {
  explicit Device(int index) : context(ddp::cuda::PrimaryContext::retain(index)), scope(*context) {}
  ddp::CallOptions call() const {
    ddp::CallOptions options;
    options.stream = {{ddp::DeviceType::cuda, context->device()}, stream.get()};
    return options;
  }
  ddp::TensorView view() const {
    return {memory.pointer(), ddp::DType::float32, {1}, {ddp::DeviceType::cuda, context->device()}};
  }
  void wait(const ddp::cuda::Stream& which) const {
    ddp::cuda::check(ddp::cuda::driver().stream_synchronize(which.get()), "waiting for the device");
  }

  ddp::cuda::ContextPtr context;
  ddp::cuda::ContextScope scope;
  ddp::cuda::Stream stream{context, ddp::cuda::StreamPriority::normal};
  ddp::cuda::DeviceMemory memory{context, sizeof(float)};
};

/// NCCL's own calls in non-blocking mode, which takes no other before one has been launched.
class Bare {
 public:
  explicit Bare(const Device& device) : device_(device) {
    nccl::ncclUniqueId id{};
    nccl::ncclConfig_t config = library_.config();
    config.blocking = 0;
    check(library_->get_unique_id(&id));
    check(library_->comm_init_rank_config(&comm_, 1, id, 0, &config));
    settle();
  }
  Bare& operator=(Bare&&) = delete;
  ~Bare() { library_->comm_abort(comm_); }

  void call() {
    check(library_->all_reduce(device_.memory.pointer(), device_.memory.pointer(), 1, nccl::ncclFloat32, nccl::ncclSum,
                               comm_, stream_.get()));
  }
  void follow_caller() {
    ready_.record(device_.stream.get());
    stream_.wait(ready_.get());
  }
  /// Behind the caller's stream, and so that its begin and end can be asked for.
  void call_between_events() {
    follow_caller();
    begun_.record(stream_.get());
    call();
    ended_.record(stream_.get());
  }
  void wait() {
    settle();
    device_.wait(stream_);
  }

  /// NCCL takes no call before it has said that it has launched the last.
  void settle() {
    while (state() == nccl::ncclInProgress) std::this_thread::sleep_for(std::chrono::microseconds(50));
  }

 private:
  static void check(nccl::ncclResult_t result) {
    if (result != nccl::ncclSuccess && result != nccl::ncclInProgress) throw std::runtime_error(to_string(result));
  }
  nccl::ncclResult_t state() {
    nccl::ncclResult_t state = nccl::ncclSuccess;
    check(library_->comm_get_async_error(comm_, &state));
    check(state);
    return state;
  }

  const Device& device_;
  const nccl::NcclLibrary& library_ = nccl::NcclLibrary::process();
  nccl::ncclComm_t comm_ = nullptr;
  ddp::cuda::Stream stream_{device_.context, ddp::cuda::StreamPriority::highest};
  ddp::cuda::Event ready_{device_.context};
  ddp::cuda::Event begun_{device_.context};
  ddp::cuda::Event ended_{device_.context};
};

/// Holds what is behind a stream, so that the double's threads do not run, and contend, while calls are timed.
class Paused {
 public:
  explicit Paused(CUstream stream) : stream_(stream) { call("fake_cuda_pause_stream"); }
  Paused& operator=(Paused&&) = delete;
  ~Paused() { call("fake_cuda_resume_stream"); }

 private:
  void call(const char* name) const {
    void* const driver = ::dlopen(std::getenv("DDP_CUDA_LIBRARY"), RTLD_NOW | RTLD_NOLOAD);
    reinterpret_cast<CUresult (*)(CUstream)>(::dlsym(driver, name))(stream_);
  }
  CUstream stream_;
};

double issue_seconds(const Device& device, Bare& bare, std::chrono::microseconds apart,
                     const std::function<void()>& issue, const std::function<void()>& wait) {
  double spent = 0;
  {
    const Paused paused(device.stream.get());
    ddp::cuda::check(ddp::cuda::driver().memset_d8_async(device.memory.get(), 0, 4, device.stream.get()), "filling");
    bare.follow_caller();
    for (int i = 0; i < kBatch; ++i) {
      const double start = seconds_of(CLOCK_THREAD_CPUTIME_ID);
      issue();
      spent += seconds_of(CLOCK_THREAD_CPUTIME_ID) - start;
      if (apart.count() > 0) std::this_thread::sleep_for(apart);
      bare.settle();
    }
  }
  wait();
  return spent / kBatch;
}

void issue(int rounds, std::chrono::microseconds apart) {
  ddp::World world = ddp::World::init();
  ddp::ProcessGroup group = ddp::make_process_group(world, "nccl");
  const Device device(0);
  Bare bare(device);
  std::vector<ddp::Work> works;
  works.reserve(kBatch);
  const auto wait = [&] { bare.wait(); };
  const auto wait_for_works = [&] {
    for (const ddp::Work& work : works) work.wait();
    works.clear();
  };
  for (int round = 0; round <= rounds; ++round) {
    const double call = issue_seconds(
        device, bare, apart, [&] { bare.call(); }, wait);
    const double events = issue_seconds(
        device, bare, apart, [&] { bare.call_between_events(); }, wait);
    const double ours = issue_seconds(
        device, bare, apart,
        [&] { works.push_back(group.all_reduce(device.view(), ddp::ReduceOp::sum, device.call())); }, wait_for_works);
    if (round == 0) continue;  // it connects
    fmt::print("{{\"call\": {:.9f}, \"events\": {:.9f}, \"libddp\": {:.9f}}}\n", call, events, ours);
  }
}

/// The double makes the third all_reduce of the process take longer than is watched.
void watch(bool with_libddp) {
  const Device device(0);
  const auto watched = [] {
    const double start = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    std::this_thread::sleep_for(kWatched);
    const double spent = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - start;
    fmt::print("{{\"processors\": {:.6f}}}\n", spent / std::chrono::duration<double>(kWatched).count());
  };
  if (!with_libddp) {
    Bare bare(device);
    for (int i = 0; i < 2; ++i) {
      bare.call();
      bare.wait();
    }
    bare.call();
    watched();
    return bare.wait();
  }
  ddp::World world = ddp::World::init();
  ddp::ProcessGroup group = ddp::make_process_group(world, "nccl");  // the first
  group.all_reduce(device.view(), ddp::ReduceOp::sum, device.call()).wait();
  const ddp::Work work = group.all_reduce(device.view(), ddp::ReduceOp::sum, device.call());
  watched();
  work.wait();
}

void lose() {
  ddp::World world = ddp::World::init();
  ddp::ProcessGroup group = ddp::make_process_group(world, "nccl");
  const Device device(world.local_rank());
  try {
    for (int step = 0;; ++step) {
      group.all_reduce(device.view(), ddp::ReduceOp::sum, device.call()).wait();
      if (step == 10) {
        fmt::print("{{\"ready\": true}}\n");
        std::fflush(stdout);
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  } catch (const ddp::Error& error) {
    fmt::print("{{\"failed_at\": {:.6f}, \"ranks\": [{}]}}\n", seconds_of(CLOCK_MONOTONIC),
               fmt::join(error.ranks(), ", "));
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string mode = argc > 1 ? argv[1] : "";
  const std::string argument = argc > 2 ? argv[2] : "";
  if (mode == "issue") {
    issue(std::atoi(argument.c_str()), std::chrono::microseconds(argc > 3 ? std::atoi(argv[3]) : 0));
  } else if (mode == "watch") {
    watch(argument == "libddp");
  } else if (mode == "lose") {
    lose();
  } else {
    fmt::print(stderr, "bench_nccl: issue ROUNDS APART_US, watch libddp|bare, or lose\n");
    return 2;
  }
  return 0;
} catch (const std::exception& error) {
  fmt::print(stderr, "bench_nccl: {}\n", error.what());
  return 1;
}
