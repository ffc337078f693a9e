// The device code that libddp carries: for which devices, and how large.
#include "kernels/device/device_image.hpp"

#include "support/sanitized.hpp"

namespace ddp::kernels {
namespace {

/// A number in the image. Its format has no public description; these offsets are those of CUDA 12 and 13.
template <class T>
T number_at(std::span<const std::byte> image, std::size_t offset) {
  T value{};
  if (offset + sizeof(T) > image.size()) throw std::out_of_range("the image ends within an entry");
  std::memcpy(&value, image.data() + offset, sizeof(T));
  return value;
}

TEST(DeviceImage, HasCodeForEachArchitectureAndPtxForLaterOnes) {
  const auto image = device_image();
  if (image.empty() || test::kSanitized) GTEST_SKIP() << "this build has no device code, or a stand-in for it";
  EXPECT_LT(image.size(), 10U << 20U);
  ASSERT_EQ(number_at<std::uint32_t>(image, 0), 0xba55ed50U);
  std::set<std::string> found;
  std::size_t offset = number_at<std::uint16_t>(image, 6);
  const std::size_t end = offset + number_at<std::uint64_t>(image, 8);
  while (offset < end) {
    const auto kind = number_at<std::uint16_t>(image, offset);  // 1: PTX, 2: machine code
    const auto architecture = number_at<std::uint32_t>(image, offset + 28);
    found.insert((kind == 1 ? "ptx_" : "sm_") + std::to_string(architecture));
    offset += number_at<std::uint32_t>(image, offset + 4) + number_at<std::uint64_t>(image, offset + 8);
  }
  // nvcc before 12.8 does not know the last one
  const std::string last = found.contains("sm_100") ? "100" : "90";
  EXPECT_THAT(found, testing::IsSupersetOf({std::string("sm_80"), std::string("sm_90"), "sm_" + last, "ptx_" + last}));
}

}  // namespace
}  // namespace ddp::kernels
