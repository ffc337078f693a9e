#include "fake_ranks.hpp"

namespace ddp::collectives::nccl {
namespace {

/// Before anything reads it. A child that a test started has them already.
[[maybe_unused]] const bool kEnvironment = [] {
  setenv("FAKE_CUDA_DEVICES", "8", 0);
  const std::string folder = ::testing::TempDir() + "/fake_nccl_" + std::to_string(getpid());
  setenv("FAKE_NCCL_DIR", folder.c_str(), 0);
  std::filesystem::create_directories(std::getenv("FAKE_NCCL_DIR"));
  return true;
}();

}  // namespace

const NcclLibrary& fake() { return NcclLibrary::process(); }

Device::Device(int device) {
  CUcontext context = nullptr;
  EXPECT_EQ(cuInit(0), CUDA_SUCCESS);
  EXPECT_EQ(cuDevicePrimaryCtxRetain(&context, device), CUDA_SUCCESS);
  EXPECT_EQ(cuCtxSetCurrent(context), CUDA_SUCCESS);
  EXPECT_EQ(cuStreamCreateWithPriority(&stream_, CU_STREAM_NON_BLOCKING, 0), CUDA_SUCCESS);
}
Device::~Device() {
  synchronize();
  EXPECT_EQ(cuStreamDestroy(stream_), CUDA_SUCCESS);
}

bool eventually(const std::function<bool()>& ready) {
  for (const auto end = std::chrono::steady_clock::now() + 60s; std::chrono::steady_clock::now() < end;) {
    if (ready()) return true;
    std::this_thread::sleep_for(1ms);
  }
  return false;
}

Buffer one() { return Buffer(std::vector<float>{1}); }

ncclResult_t all_reduce(const Rank& rank, const Buffer& buffer) {
  return fake()->all_reduce(buffer.get(), buffer.get(), 1, ncclFloat32, ncclSum, rank.comm, rank.stream());
}

ncclConfig_t config(Mode mode) {
  ncclConfig_t config = fake().config();
  config.blocking = mode == Mode::blocking ? 1 : 0;
  return config;
}

ncclResult_t settle(ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  eventually([&] { return fake()->comm_get_async_error(comm, &state) != ncclSuccess || state != ncclInProgress; });
  return state;
}

ncclUniqueId unique_id() {
  ncclUniqueId id{};
  EXPECT_EQ(fake()->get_unique_id(&id), ncclSuccess);
  return id;
}

void with_devices(int size, const std::function<void(int, Device&)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      Device device(rank);
      body(rank, device);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void with_ranks(int size, Mode mode, const std::function<void(Rank&)>& body) {
  const ncclUniqueId id = unique_id();
  with_devices(size, [&](int number, Device& device) {
    Rank rank{.rank = number, .size = size, .device = device, .comm = nullptr};
    ncclConfig_t options = config(mode);
    const auto made = fake()->comm_init_rank_config(&rank.comm, size, id, number, &options);
    EXPECT_EQ(made, mode == Mode::blocking ? ncclSuccess : ncclInProgress);
    ASSERT_EQ(settle(rank.comm), ncclSuccess);
    body(rank);
    if (rank.comm == nullptr) return;
    device.synchronize();
    EXPECT_EQ(settle(rank.comm), ncclSuccess);
    EXPECT_EQ(fake()->comm_destroy(rank.comm), ncclSuccess);
  });
}

FakeNcclTest::~FakeNcclTest() {
  fake_nccl_release();
  EXPECT_EQ(fake_nccl_live_comms(), 0);
  EXPECT_STREQ(fake_nccl_complaints(), "");
  EXPECT_TRUE(std::filesystem::is_empty(std::getenv("FAKE_NCCL_DIR")));
  fake_nccl_faults("");
  fake_nccl_set_strict(true);
  fake_nccl_set_report_peers(true);
  fake_nccl_set_device_slots(0);
  fake_nccl_set_lazy_connect(false);
}

}  // namespace ddp::collectives::nccl
