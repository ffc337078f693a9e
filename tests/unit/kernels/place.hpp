// Where a test runs kernels: on this processor, or on a CUDA device, with memory that the kernels can reach.
#pragma once

#include "kernels/executor.hpp"

namespace ddp::kernels {

class Place {
 public:
  Place() = default;
  Place& operator=(Place&&) = delete;
  virtual ~Place() = default;

  virtual Executor& executor() = 0;
  /// Memory with these bytes, aligned to 256; lives as long as the place.
  virtual void* put(const void* bytes, std::size_t size) = 0;
  /// What is there once all that was launched is over.
  virtual void get(void* to, const void* from, std::size_t size) = 0;

  template <class T>
  T* put(const std::vector<T>& values) {
    return static_cast<T*>(put(values.data(), values.size() * sizeof(T)));
  }
  template <class T>
  std::vector<T> get(const T* from, std::size_t count) {
    std::vector<T> values(count);
    get(values.data(), from, count * sizeof(T));
    return values;
  }
};

class HostPlace final : public Place {
 public:
  Executor& executor() override { return executor_; }
  void* put(const void* bytes, std::size_t size) override {
    // of the exact size, so that sanitizers see what a kernel touches beyond it
    memory_.emplace_back(::operator new (size, std::align_val_t{kAlignment}));
    if (size != 0) std::memcpy(memory_.back().get(), bytes, size);
    return memory_.back().get();
  }
  void get(void* to, const void* from, std::size_t size) override {
    if (size != 0) std::memcpy(to, from, size);
  }
  using Place::get;
  using Place::put;

 private:
  static constexpr std::size_t kAlignment = 256;
  struct Free {
    void operator()(void* memory) const { ::operator delete (memory, std::align_val_t{kAlignment}); }
  };
  HostExecutor executor_;
  std::vector<std::unique_ptr<void, Free>> memory_;
};

/// "host" or "device"; null where the build or the machine has no such place, with the reason in @p why.
std::unique_ptr<Place> make_place(const std::string& name, std::string& why);

// Runs a test in each place where kernels run.

struct KernelsTest : testing::TestWithParam<std::string> {
  void SetUp() override {
    std::string why;
    place_ = make_place(GetParam(), why);
    if (!place_) GTEST_SKIP() << why;
  }
  Place& place() { return *place_; }

 private:
  std::unique_ptr<Place> place_;
};

}  // namespace ddp::kernels
