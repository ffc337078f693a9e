// The driver's library: where it is looked for, what is said when it is missing, broken or too old, and its symbols.
#include "cuda/driver.hpp"

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include <fmt/format.h>
#include <gmock/gmock.h>

namespace ddp::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// What the probe prints in this environment, which begins as ours.
std::string probe(const std::string& environment, const std::string& loaded_before = "") {
  const std::string command =
      fmt::format("env -u DDP_CUDA_LIBRARY {} {} {} 2>&1", environment, TEST_PROBE, loaded_before);
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return "popen";
  std::string text;
  std::array<char, 4096> buffer{};
  while (fgets(buffer.data(), buffer.size(), pipe) != nullptr) text += buffer.data();
  pclose(pipe);
  return text;
}

std::string with_fake(const std::string& more) { return fmt::format("DDP_CUDA_LIBRARY={} {}", TEST_FAKE, more); }

TEST(Driver, TakesTheLoadedLibraryThenTheVariableThenTheLoader) {
  const auto found = [](const std::string& text) {
    std::istringstream words(text);
    std::string file;
    words >> file;
    return std::filesystem::weakly_canonical(file);
  };
  const auto fake = std::filesystem::weakly_canonical(TEST_FAKE);
  const std::string folder = std::filesystem::path(TEST_FAKE).parent_path();
  EXPECT_EQ(found(probe("DDP_CUDA_LIBRARY=/nowhere/libcuda.so.1", TEST_FAKE)), fake);
  EXPECT_EQ(found(probe(fmt::format("LD_LIBRARY_PATH=/nowhere DDP_CUDA_LIBRARY={}", TEST_FAKE))), fake);
  EXPECT_EQ(found(probe("LD_LIBRARY_PATH=" + folder)), fake);
  EXPECT_THAT(probe(with_fake("FAKE_CUDA_VERSION=12000")), HasSubstr(" 12000 GPU-"));
}

/// Processes that see the same device can tell, whatever its number; so can machines.
TEST(Driver, UuidsAreTheDevices) {
  const auto uuids = [](const std::string& environment) {
    std::istringstream words(probe(with_fake(environment)));
    std::vector<std::string> all{std::istream_iterator<std::string>(words), {}};
    all.erase(all.begin(), all.begin() + std::min<std::ptrdiff_t>(2, std::ssize(all)));
    return all;
  };
  const std::vector<std::string> all = uuids("FAKE_CUDA_DEVICES=3");
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(uuids("FAKE_CUDA_DEVICES=3 CUDA_VISIBLE_DEVICES=2,0,9,1"), (std::vector{all[2], all[0]}));
  EXPECT_EQ(uuids("FAKE_CUDA_DEVICES=3"), all);
  EXPECT_NE(uuids("FAKE_CUDA_DEVICES=3 FAKE_CUDA_HOST=other")[0], all[0]);
}

TEST(Driver, SaysWhatWasTriedAndWhatIsWrong) {
  const auto text = std::filesystem::temp_directory_path() / fmt::format("libcuda-text-{}.so", getpid());
  std::ofstream(text) << std::string(1000, 'x');
  struct Case {
    std::string environment;
    std::vector<std::string> words;
  };
  const std::vector<Case> cases{
      {"DDP_CUDA_LIBRARY=/nowhere/libcuda.so.1", {"DDP_CUDA_LIBRARY", "/nowhere/libcuda.so.1", "correct or unset"}},
      {"DDP_CUDA_LIBRARY=" + text.string(), {text.string(), "invalid ELF header"}},
      {fmt::format("DDP_CUDA_LIBRARY={}", TEST_PARTIAL),
       {TEST_PARTIAL, "CUDA 12.4", "has no ", "cuInit", "cuMemAlloc_v2"}},
      {"DDP_CUDA_LIBRARY=libc.so.6", {"has no cuDriverGetVersion"}},
      {with_fake("FAKE_CUDA_VERSION=11080"), {TEST_FAKE, "supports CUDA 11.8 at most", "needs 12.0", "525"}},
      {with_fake("FAKE_CUDA_DEVICES=0"), {"does not start", "CUDA_ERROR_NO_DEVICE (100)", "nvidia-smi"}},
      {with_fake("CUDA_VISIBLE_DEVICES="), {"CUDA_ERROR_NO_DEVICE (100)"}},
      {with_fake("FAKE_CUDA_FAULTS=cuInit"), {"CUDA_ERROR_INVALID_VALUE (1)"}},
  };
  for (const Case& each : cases) {
    const std::string said = probe(each.environment);
    EXPECT_THAT(said, StartsWith("unavailable: opening CUDA's driver library: ")) << each.environment;
    for (const std::string& word : each.words) EXPECT_THAT(said, HasSubstr(word)) << each.environment;
  }
  std::filesystem::remove(text);
}

TEST(Driver, MissingEverywhere) {
  if (void* library = popen("ldconfig -p | grep -q libcuda.so.1", "r"); pclose(static_cast<FILE*>(library)) == 0) {
    GTEST_SKIP() << "this machine has a driver";
  }
  EXPECT_THAT(probe("LD_LIBRARY_PATH="),
              AllOf(StartsWith("unavailable: "), HasSubstr("the process has loaded none, DDP_CUDA_LIBRARY is not set"),
                    HasSubstr("libcuda.so.1: cannot open"), HasSubstr("nvidia-smi")));
}

/// The profiler's list of the driver's functions names the binary interface's symbols, in toolkits with CUPTI.
TEST(Driver, EverySymbolIsInTheToolkitsList) {
  std::ifstream file(TEST_CUDA_INCLUDE "/cupti_driver_cbid.h");
  if (!file) GTEST_SKIP() << "no cupti_driver_cbid.h beside cuda.h";
  const std::string list{std::istreambuf_iterator<char>(file), {}};
#define EXPECT_LISTED(member, type, symbol) EXPECT_THAT(list, HasSubstr("CUPTI_DRIVER_TRACE_CBID_" symbol " "));
  DDP_CUDA_FUNCTIONS(EXPECT_LISTED)
#undef EXPECT_LISTED
}

TEST(Driver, VersionText) {
  EXPECT_EQ(version_text(12040), "12.4");
  EXPECT_EQ(version_text(13000), "13.0");
}

}  // namespace
}  // namespace ddp::cuda
