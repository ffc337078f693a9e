// Ranks as threads of the test, each with a device of the fake CUDA and a stream, which call the fake NCCL.
#pragma once

#include <cuda.h>

#include "collectives/nccl/nccl_library.hpp"
#include "support/fake_nccl/fake_nccl.hpp"

namespace ddp::collectives::nccl {

/// The double, which the program links for its controls: so it is found as one that is loaded already.
const NcclLibrary& fake();

/// Memory of the current device.
class Buffer {
 public:
  explicit Buffer(std::size_t bytes) : bytes_(bytes) { EXPECT_EQ(cuMemAlloc(&address_, bytes), CUDA_SUCCESS); }
  template <class T>
  explicit Buffer(const std::vector<T>& values) : Buffer(values.size() * sizeof(T)) {
    std::memcpy(get(), values.data(), bytes_);  // the double's device memory is the host's
  }
  Buffer& operator=(Buffer&&) = delete;
  ~Buffer() { EXPECT_EQ(cuMemFree(address_), CUDA_SUCCESS); }
  void* get() const { return reinterpret_cast<void*>(address_); }  // NOLINT(performance-no-int-to-ptr)
  template <class T>
  std::vector<T> read() const {
    std::vector<T> values(bytes_ / sizeof(T));
    std::memcpy(values.data(), get(), values.size() * sizeof(T));
    return values;
  }

 private:
  CUdeviceptr address_ = 0;
  std::size_t bytes_;
};

/// A thread's device and stream. Uses device @p device.
class Device {
 public:
  explicit Device(int device);
  Device& operator=(Device&&) = delete;
  ~Device();
  CUstream stream() const { return stream_; }
  void synchronize() const { EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_SUCCESS); }
  bool idle() const { return cuStreamQuery(stream_) == CUDA_SUCCESS; }

 private:
  CUstream stream_ = nullptr;
};

enum class Mode { blocking, non_blocking };

struct Rank {
  int rank;
  int size;
  Device& device;
  ncclComm_t comm;
  CUstream stream() const { return device.stream(); }
};

/// A float 1 on the thread's device.
Buffer one();
/// Sums the float of @p buffer over the ranks, in place.
ncclResult_t all_reduce(const Rank& rank, const Buffer& buffer);

ncclConfig_t config(Mode mode);
/// Polls until the communicator is not in progress any more, for a minute at most.
ncclResult_t settle(ncclComm_t comm);
/// Waits until @p ready, for a minute at most.
bool eventually(const std::function<bool()>& ready);

/// Runs @p body on @p size ranks with a communicator, which is destroyed afterwards unless body sets it to null.
void with_ranks(int size, Mode mode, const std::function<void(Rank&)>& body);
/// The same without a communicator.
void with_devices(int size, const std::function<void(int rank, Device& device)>& body);
ncclUniqueId unique_id();

/// Nothing of the double is left over from one test to the next, and it had nothing to complain of that the test did
/// not read.
struct FakeNcclTest : ::testing::Test {
  ~FakeNcclTest() override;
};

}  // namespace ddp::collectives::nccl
