// The driver's library: one that cannot be opened or started, one that hangs, and when it is stopped.
#include "gpu_facts_fixture.hpp"

#include <ddp/error.hpp>
#include "support/error_of.hpp"

namespace ddp::topology::test {
namespace {

TEST_F(GpuFactsTest, NvmlThatCannotBeOpenedSaysWhy) {
  const auto problem_of = [](const std::string& library) {
    return ddp::test::error_of([&] { const Nvml nvml{library}; });
  };
  const auto missing = problem_of("/nonexistent/libnvidia-ml.so.1");
  ASSERT_TRUE(missing);
  EXPECT_EQ(missing->code(), ErrorCode::unavailable);
  EXPECT_THAT(missing->cause(), HasSubstr("/nonexistent/libnvidia-ml.so.1"));

  const auto foreign = problem_of("libm.so.6");
  ASSERT_TRUE(foreign);
  EXPECT_EQ(foreign->code(), ErrorCode::unavailable);
  EXPECT_THAT(foreign->cause(), HasSubstr("nvmlShutdown"));

  set("INIT", "9");
  for (const std::string& library : {fake_nvml(), old_fake_nvml()}) {
    const auto no_driver = problem_of(library);
    ASSERT_TRUE(no_driver);
    EXPECT_EQ(no_driver->code(), ErrorCode::unavailable);
    EXPECT_EQ(no_driver->native(), "Driver Not Loaded (9)");
  }
}

TEST_F(GpuFactsTest, LibraryIsStoppedOnceAndNotBeforeItsOwnerGoes) {
  const auto log = root.path() / "log";
  set("LOG", log.string());
  set("COUNT", "1");
  const auto lines = [&] {
    std::stringstream text;
    text << std::ifstream(log).rdbuf();
    return text.str();
  };
  {
    Nvml first{fake_nvml()};
    const Nvml second = std::move(first);
    EXPECT_EQ(lines(), "start\n");
    EXPECT_EQ(second.gpus().size(), 1U);
  }
  EXPECT_EQ(lines(), "start\nstop\n");
}

TEST_F(GpuFactsTest, HealthIsThatOfEachGpu) {
  set("COUNT", "2");
  EXPECT_EQ(Nvml{fake_nvml()}.health().at(0), (GpuHealth{.name = "GPU-0"}));  // what is not told is healthy
  set("ECC", "3");
  set("REMAP", "3");
  set("SLOWDOWN", "72");
  set("PERSISTENCE", "0");
  for (const bool old : {false, true}) {  // one without rows that can be replaced
    const auto gpus = Nvml{old ? old_fake_nvml() : fake_nvml()}.health();
    ASSERT_EQ(gpus.size(), 2U);
    EXPECT_EQ(gpus[0], (GpuHealth{.name = "GPU-0",
                                  .uncorrected_errors = 3,
                                  .remap_pending = true,
                                  .remap_failed = !old,
                                  .slowed_by = kSlowedByHardware | kSlowedByHeatOfHardware,
                                  .persistent = false}));
    EXPECT_EQ(gpus[1], (GpuHealth{.name = "GPU-1", .persistent = false}));
  }
  EXPECT_EQ(ask_gpu_health(Deadline::after(std::chrono::seconds(30)), fake_nvml()).size(), 2U);
  EXPECT_TRUE(ask_gpu_health(Deadline::after(std::chrono::seconds(30)), "/nonexistent/libnvidia-ml.so.1").empty());
}

TEST_F(GpuFactsTest, TheFabricIsThatOfNvswitches) {
  set("COUNT", "2");
  EXPECT_EQ(Nvml{fake_nvml()}.health().at(0).fabric, FabricState::none);
  set("FABRIC", "2");
  set("FABRIC_ERROR", "9");  // counts only when it is completed
  const auto joining = Nvml{fake_nvml()}.health();
  EXPECT_EQ(joining.at(0).fabric, FabricState::in_progress);
  EXPECT_EQ(joining.at(0).fabric_error, 0);
  EXPECT_EQ(joining.at(1).fabric, FabricState::completed);
  EXPECT_EQ(joining.at(1).cluster, "");
  set("FABRIC", "3");
  set("CLUSTER", "5");
  const GpuHealth joined = Nvml{fake_nvml()}.health().at(0);
  EXPECT_EQ(joined.fabric_error, 9);
  EXPECT_EQ(joined.cluster, "00000000000000000000000000000005");
  EXPECT_EQ(joined.clique, 7);
  set("FABRIC", "4");  // what it does not know
  EXPECT_EQ(Nvml{fake_nvml()}.health().at(0).fabric, FabricState::none);
  EXPECT_EQ(Nvml{old_fake_nvml()}.health().at(1).fabric, FabricState::none);
}

TEST_F(GpuFactsTest, ADriverThatHangsIsNotWaitedFor) {
  set("COUNT", "2");
  ASSERT_EQ(ask_nvml(Deadline::after(std::chrono::seconds(30)), fake_nvml()).value().size(), 2U);
  EXPECT_FALSE(ask_nvml(Deadline::after(std::chrono::seconds(30)), "/nonexistent/libnvidia-ml.so.1"));
  set("HANG", "1");
  const auto begin = Deadline::Clock::now();
  EXPECT_FALSE(ask_nvml(Deadline::after(std::chrono::milliseconds(500)), fake_nvml()));
  EXPECT_LT(Deadline::Clock::now() - begin, std::chrono::seconds(10));
}

}  // namespace
}  // namespace ddp::topology::test
