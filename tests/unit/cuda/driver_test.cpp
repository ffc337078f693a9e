// The driver's library: where it is looked for, what is said when it is missing, broken or too old, and its symbols.
#include <ddp/error.hpp>

#include "cuda/context.hpp"
#include "cuda/driver.hpp"
#include "cuda/stream.hpp"
#include "support/checkout.hpp"
#include "support/error_of.hpp"
#include "unit/cuda/cuda_fixture.hpp"

namespace ddp::cuda {
namespace {

std::string fake_driver() { return ddp::test::built_file("lib/fake_cuda/libcuda.so.1"); }

/// What the probe prints in this environment, which begins as ours.
std::string probe(const std::string& environment, const std::string& loaded_before = "") {
  const std::string command = fmt::format("env -u DDP_CUDA_LIBRARY {} '{}' '{}' 2>&1", environment,
                                          ddp::test::built_program("cuda_driver_probe"), loaded_before);
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return "popen";
  std::string text;
  std::array<char, 4096> buffer{};
  while (fgets(buffer.data(), buffer.size(), pipe) != nullptr) text += buffer.data();
  pclose(pipe);
  return text;
}

std::string with_fake(const std::string& more) { return fmt::format("DDP_CUDA_LIBRARY='{}' {}", fake_driver(), more); }

TEST(Driver, TakesTheLoadedLibraryThenTheVariableThenTheLoader) {
  const auto found = [](const std::string& text) {
    return std::filesystem::weakly_canonical(text.substr(0, text.find('\n')));
  };
  const auto fake = std::filesystem::weakly_canonical(fake_driver());
  const std::string folder = std::filesystem::path(fake_driver()).parent_path();
  EXPECT_EQ(found(probe("DDP_CUDA_LIBRARY=/nowhere/libcuda.so.1", fake_driver())), fake);
  EXPECT_EQ(found(probe(fmt::format("LD_LIBRARY_PATH=/nowhere DDP_CUDA_LIBRARY='{}'", fake_driver()))), fake);
  EXPECT_EQ(found(probe(fmt::format("LD_LIBRARY_PATH='{}'", folder))), fake);
  EXPECT_THAT(probe(with_fake("FAKE_CUDA_VERSION=12000")), HasSubstr("\n12000 GPU-"));
}

/// Processes that see the same device can tell, whatever its number; so can machines.
TEST(Driver, UuidsAreTheDevices) {
  const auto uuids = [](const std::string& environment) {
    const std::string text = probe(with_fake(environment));
    std::istringstream words(text.substr(text.find('\n') + 1));
    std::vector<std::string> all{std::istream_iterator<std::string>(words), {}};
    all.erase(all.begin(), all.begin() + std::min<std::ptrdiff_t>(1, std::ssize(all)));
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
      {fmt::format("DDP_CUDA_LIBRARY='{}'", ddp::test::built_file("tests/unit/cuda/libcuda_partial_driver.so")),
       {ddp::test::built_file("tests/unit/cuda/libcuda_partial_driver.so"), "CUDA 12.4", "has no ", "cuInit",
        "cuMemAlloc_v2"}},
      {"DDP_CUDA_LIBRARY=libc.so.6", {"has no cuDriverGetVersion"}},
      {with_fake("FAKE_CUDA_VERSION=11080"), {fake_driver(), "supports CUDA 11.8 at most", "needs 12.0", "525"}},
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

// The owners of contexts, streams, events, memory and modules, and what errors say.

namespace {

TEST(CudaOwners, LeaveNothingBehind) {
  fake_driver();
  const FakeCudaLive before = fake_cuda_live();
  CUcontext kept_handle = nullptr;
  {
    const ContextPtr context = PrimaryContext::retain(1);
    kept_handle = context->get();
    Stream stream(context, StreamPriority::highest);
    Stream moved = std::move(stream);
    Stream assigned(context, StreamPriority::normal);
    assigned = std::move(moved);
    const Stream borrowed = Stream::borrow(assigned.get());
    Event event(context);
    Event other = std::move(event);
    event = Event(context);
    DeviceMemory memory(context, 100);
    DeviceMemory taken = std::move(memory);
    memory = DeviceMemory(context, 5);
    PinnedMemory pinned(context, 100);
    PinnedMemory held = std::move(pinned);
    pinned = PinnedMemory(context, 7);
    EXPECT_EQ(held.bytes().size(), 100u);
    EXPECT_EQ(taken.size_bytes(), 100u);
    constexpr unsigned kFatBinary = 0xba55ed50;
    Module module(context, &kFatBinary);
    Module kept = std::move(module);
    const FakeCudaLive during = fake_cuda_live();
    EXPECT_EQ(during.streams, before.streams + 2);
    EXPECT_EQ(during.events, before.events + 2);
    EXPECT_EQ(during.allocations, before.allocations + 4);
    EXPECT_EQ(during.modules, before.modules + 1);
  }
  const FakeCudaLive after = fake_cuda_live();
  EXPECT_EQ(after.streams, before.streams);
  EXPECT_EQ(after.events, before.events);
  EXPECT_EQ(after.allocations, before.allocations);
  EXPECT_EQ(after.modules, before.modules);
  // The context has gone with the last of them.
  CUcontext popped = nullptr;
  CUevent made = nullptr;
  ASSERT_EQ(driver().ctx_push_current(kept_handle), CUDA_SUCCESS);
  EXPECT_EQ(driver().event_create(&made, 0), CUDA_ERROR_CONTEXT_IS_DESTROYED);
  ASSERT_EQ(driver().ctx_pop_current(&popped), CUDA_SUCCESS);
}

TEST(CudaOwners, ScopesNestAndRestore) {
  const ContextPtr first = PrimaryContext::retain(0);
  const ContextPtr second = PrimaryContext::retain(1);
  const auto current = [] {
    CUcontext context = nullptr;
    driver().ctx_get_current(&context);
    return context;
  };
  EXPECT_EQ(current(), nullptr);
  {
    const ContextScope outer(*first);
    EXPECT_EQ(current(), first->get());
    {
      const ContextScope inner(*second);
      EXPECT_EQ(current(), second->get());
      const ContextScope again(*second);
    }
    EXPECT_EQ(current(), first->get());
    const Event elsewhere(second);  // owners restore, too
    EXPECT_EQ(current(), first->get());
  }
  EXPECT_EQ(current(), nullptr);
}

TEST(CudaOwners, StreamsAndEventsOrder) {
  const ContextPtr context = PrimaryContext::retain(0);
  const ContextScope scope(*context);
  const Stream urgent(context, StreamPriority::highest);
  const Stream normal(context, StreamPriority::normal);
  int priority = 0;
  unsigned flags = 0;
  driver().stream_get_priority(urgent.get(), &priority);
  driver().stream_get_flags(urgent.get(), &flags);
  EXPECT_LT(priority, 0);
  EXPECT_EQ(flags, static_cast<unsigned>(CU_STREAM_NON_BLOCKING));
  EventPool pool(context);
  Event event = pool.take();
  const CUevent handle = event.get();
  Gate gate;
  enqueue(normal.get(), gate.pass());
  event.record(normal.get());
  EXPECT_EQ(event.query(), CUDA_ERROR_NOT_READY);
  urgent.wait(event.get());
  enqueue(urgent.get(), [] {});
  pool.give_back(std::move(event));
  EXPECT_EQ(urgent.query(), CUDA_ERROR_NOT_READY);
  gate.open();
  EXPECT_EQ(driver().stream_synchronize(urgent.get()), CUDA_SUCCESS);
  EXPECT_EQ(pool.take().get(), handle);  // the same again
  EXPECT_FALSE(urgent.capture_state().capturing());
}

TEST(CudaOwners, ErrorsSayWhatFailed) {
  const ContextPtr context = PrimaryContext::retain(0);
  const Error memory = test::thrown_by([&] { DeviceMemory(context, std::size_t{1} << 40); });
  EXPECT_EQ(memory.attempted(), "allocating 1099511627776 bytes on CUDA device 0");
  EXPECT_EQ(memory.cause(), "out of memory");
  EXPECT_EQ(memory.native(), "CUDA_ERROR_OUT_OF_MEMORY (2)");
  EXPECT_THAT(memory.hint(), HasSubstr("nvidia-smi"));
  const Error device = test::thrown_by([] { PrimaryContext::retain(99); });
  EXPECT_EQ(device.code(), ErrorCode::invalid_argument);
  EXPECT_EQ(device.native(), "CUDA_ERROR_INVALID_DEVICE (101)");
  EXPECT_EQ(test::thrown_by([] { device_facts(-1); }).attempted(), "describing CUDA device -1");
  const unsigned text = 0;
  EXPECT_EQ(test::thrown_by([&] { Module(context, &text); }).native(), "CUDA_ERROR_INVALID_IMAGE (200)");
  EXPECT_EQ(error_name(static_cast<CUresult>(4711)), "CUresult (4711)");
  EXPECT_NO_THROW(check(CUDA_SUCCESS, "nothing"));
}

}  // namespace

}  // namespace ddp::cuda
