// The owners of contexts, streams, events, memory and modules, and what errors say.
#include <gmock/gmock.h>
#include <ddp/error.hpp>

#include "cuda/cuda_error.hpp"
#include "cuda/device.hpp"
#include "cuda/event.hpp"
#include "cuda/memory.hpp"
#include "cuda/module.hpp"
#include "unit/cuda/cuda_fixture.hpp"

namespace ddp::cuda {
namespace {

using ::testing::HasSubstr;

/// The error that @p call throws.
template <class Call>
ErrorDetail error_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    return error.detail();
  }
  ADD_FAILURE() << "no error";
  return {};
}

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
  const ErrorDetail memory = error_of([&] { DeviceMemory(context, std::size_t{1} << 40); });
  EXPECT_EQ(memory.attempted, "allocating 1099511627776 bytes on CUDA device 0");
  EXPECT_EQ(memory.cause, "out of memory");
  EXPECT_EQ(memory.native, "CUDA_ERROR_OUT_OF_MEMORY (2)");
  EXPECT_THAT(memory.hint, HasSubstr("nvidia-smi"));
  const ErrorDetail device = error_of([] { PrimaryContext::retain(99); });
  EXPECT_EQ(device.code, ErrorCode::invalid_argument);
  EXPECT_EQ(device.native, "CUDA_ERROR_INVALID_DEVICE (101)");
  EXPECT_EQ(error_of([] { device_facts(-1); }).attempted, "describing CUDA device -1");
  const unsigned text = 0;
  EXPECT_EQ(error_of([&] { Module(context, &text); }).native, "CUDA_ERROR_INVALID_IMAGE (200)");
  EXPECT_EQ(error_name(static_cast<CUresult>(4711)), "CUresult (4711)");
  EXPECT_NO_THROW(check(CUDA_SUCCESS, "nothing"));
}

}  // namespace
}  // namespace ddp::cuda
