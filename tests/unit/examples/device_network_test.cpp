// The network on a CUDA device against the one on the processor: the same losses, gradients and updates, up to
// rounding.
#include "digits/cuda/network.hpp"

#include <dlfcn.h>

#include <cstdlib>

#include <gtest/gtest.h>
#include <ddp/error.hpp>

#include "digits/optimizer.hpp"

namespace digits::cuda {
namespace {

constexpr std::size_t kSmallWidths[] = {kPixels, 24, 12, kClasses};
constexpr float kTolerance = 2e-5F;

class DeviceNetworkTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    if (std::getenv("DDP_TEST_GPU") != nullptr) return;
    setenv("FAKE_CUDA_KERNELS", DIGITS_HOST_KERNELS, 1);
    // loaded already when the example asks for libcuda.so.1
    ASSERT_NE(dlopen(DDP_FAKE_CUDA, RTLD_NOW | RTLD_GLOBAL), nullptr) << dlerror();
  }
  void SetUp() override {
    if (Gpu::count() == 0) GTEST_SKIP() << "the CUDA driver shows no device";
  }
};

Batch<float> batch_of(std::size_t first, std::size_t count) {
  static const Dataset dataset = load_digits(default_digits_file());
  std::vector<std::size_t> samples;
  for (std::size_t i = first; i < first + count; ++i) samples.push_back(i);
  return make_batch<float>(dataset, samples);
}

TEST_F(DeviceNetworkTest, LearnsAsTheProcessorDoes) {
  Gpu gpu(0);
  DeviceNetwork on_device(gpu, kSmallWidths, 3, 32);
  Network<float> on_host(kSmallWidths, 3);
  SgdMomentum<float> optimizer(on_host.parameters(), 0.2F, 0.9F);
  std::vector<float> gradients(on_device.parameter_count());
  for (std::size_t step = 0; step < 4; ++step) {
    const std::size_t samples = step == 2 ? 0 : 32 - step;  // also none
    const Batch<float> batch = batch_of(100 * step, samples);
    const auto expected = on_host.forward(batch);
    const auto got = on_device.forward(batch);
    EXPECT_NEAR(got.loss_sum, expected.loss_sum, 1e-4 * static_cast<double>(samples));
    EXPECT_EQ(got.correct, expected.correct);
    on_host.backward(1 / 32.0F, [](std::size_t) {});
    std::vector<std::pair<std::size_t, std::size_t>> layers;
    on_device.backward(1 / 32.0F, [&](std::size_t first, std::size_t count) { layers.emplace_back(first, count); });
    ASSERT_EQ(layers.size(), 3U);
    EXPECT_EQ(layers[0].first + layers[0].second, gradients.size()) << "the last layer first";
    EXPECT_EQ(layers[2].first, 0U);
    gpu.download(std::span(gradients), on_device.gradients());
    std::size_t i = 0;
    for (const auto& parameter : on_host.parameters()) {
      for (const float gradient : parameter.gradient) {
        ASSERT_NEAR(gradients[i], gradient, kTolerance) << parameter.name << " in step " << step;
        ++i;
      }
    }
    optimizer.step();
    on_device.update(0.2F, 0.9F);
  }
}

TEST_F(DeviceNetworkTest, BatchesThatDoNotFitAreRefused) {
  Gpu gpu(0);
  DeviceNetwork network(gpu, kSmallWidths, 3, 4);
  EXPECT_THROW(network.forward(batch_of(0, 5)), ddp::Error);
}

}  // namespace
}  // namespace digits::cuda
