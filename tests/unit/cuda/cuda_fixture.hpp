// What tests of CUDA share: the double with eight devices, and work that waits until the test lets it go.
#pragma once

#include <condition_variable>

#include "cuda/context.hpp"
#include "cuda/driver.hpp"
#include "cuda/stream.hpp"
#include "tests/support/fake_cuda/fake_cuda.hpp"

namespace ddp::cuda {

/// Devices of tests after which no context works any more.
inline constexpr int kFirstDeviceToFail = 2;
inline constexpr const char* kConcurrentKernels = "2";

inline const Driver& fake_driver() {
  static const bool once = [] {
    setenv("FAKE_CUDA_DEVICES", "8", 1);
    setenv("FAKE_CUDA_MEMORY_MIB", "64", 1);
    setenv("FAKE_CUDA_CONCURRENT_KERNELS", kConcurrentKernels, 1);
    return true;
  }();
  static_cast<void>(once);
  return driver();
}

/// Work that does not end before open(), or before this is destroyed.
class Gate {
 public:
  ~Gate() { open(); }
  void open() {
    const std::lock_guard lock(state_->mutex);
    state_->open = true;
    state_->changed.notify_all();
  }
  /// What comes back when the gate is open.
  std::function<void()> pass() const {
    return [state = state_] {
      std::unique_lock lock(state->mutex);
      state->changed.wait(lock, [&] { return state->open; });
    };
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    bool open = false;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

/// What ran, in the order in which it did.
class Log {
 public:
  void add(int entry) {
    const std::lock_guard lock(mutex_);
    entries_.push_back(entry);
  }
  std::vector<int> entries() const {
    const std::lock_guard lock(mutex_);
    return entries_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<int> entries_;
};

/// Puts a function into a stream as a kernel.
inline CUresult enqueue(CUstream stream, std::function<void()> function) {
  return fake_cuda_enqueue(
      stream, [](void* argument) { (*static_cast<std::function<void()>*>(argument))(); },
      [](void* argument) { delete static_cast<std::function<void()>*>(argument); },
      new std::function<void()>(std::move(function)));
}

/// Comes back when @p condition holds; the test's own limit ends it otherwise.
template <class Condition>
void until(Condition condition) {
  while (!condition()) std::this_thread::yield();
}

/// Device 0, or the given one, is current.
struct CudaTest : ::testing::Test {
  explicit CudaTest(int device = 0)
      : api(fake_driver()), context(PrimaryContext::retain(device)), scope_(std::make_unique<ContextScope>(*context)) {}

  CUstream stream(unsigned flags = CU_STREAM_NON_BLOCKING, int priority = 0) {
    CUstream made = nullptr;
    EXPECT_EQ(api.stream_create_with_priority(&made, flags, priority), CUDA_SUCCESS);
    streams_.push_back(made);
    return made;
  }
  CUevent event(unsigned flags = CU_EVENT_DISABLE_TIMING) {
    CUevent made = nullptr;
    EXPECT_EQ(api.event_create(&made, flags), CUDA_SUCCESS);
    events_.push_back(made);
    return made;
  }
  ~CudaTest() override {
    for (CUevent made : events_) api.event_destroy(made);
    for (CUstream made : streams_) {
      api.stream_synchronize(made);
      api.stream_destroy(made);
    }
  }

  const Driver& api;
  ContextPtr context;

 private:
  std::unique_ptr<ContextScope> scope_;
  std::vector<CUstream> streams_;
  std::vector<CUevent> events_;
};

}  // namespace ddp::cuda
