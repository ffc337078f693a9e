#include "unit/collectives/engine/allocation_count.hpp"

#include <dlfcn.h>
#include <pthread.h>

#include <new>

namespace {

thread_local std::uint64_t count = 0;
thread_local int until_failure = -1;

bool fails() noexcept { return until_failure >= 0 && until_failure-- == 0; }

}  // namespace

namespace ddp::test {

std::uint64_t allocations_of_this_thread() noexcept { return count; }
void fail_an_allocation(int others) noexcept { until_failure = others; }

}  // namespace ddp::test

#ifdef DDP_SANITIZED

void* operator new(std::size_t size) {
  ++count;
  if (fails()) throw std::bad_alloc();
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
void* operator new(std::size_t size, const std::nothrow_t& /*tag*/) noexcept {
  ++count;
  return std::malloc(size);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t /*size*/) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t& /*tag*/) noexcept { std::free(memory); }

#else

// glibc's own, below malloc
extern "C" void* __libc_malloc(std::size_t size);                     // NOLINT(bugprone-reserved-identifier)
extern "C" void* __libc_calloc(std::size_t items, std::size_t size);  // NOLINT(bugprone-reserved-identifier)
extern "C" void* __libc_realloc(void* memory, std::size_t size);      // NOLINT(bugprone-reserved-identifier)

extern "C" void* malloc(std::size_t size) noexcept {
  ++count;
  if (fails()) return nullptr;
  return __libc_malloc(size);
}
extern "C" void* calloc(std::size_t items, std::size_t size) noexcept {
  ++count;
  return __libc_calloc(items, size);
}
extern "C" void* realloc(void* memory, std::size_t size) noexcept {
  ++count;
  return __libc_realloc(memory, size);
}

#endif

namespace {

thread_local std::uint64_t lock_count = 0;

}  // namespace

namespace ddp::test {

std::uint64_t locks_of_this_thread() noexcept { return lock_count; }

}  // namespace ddp::test

#ifndef DDP_SANITIZED

namespace {

/// glibc's own. Looked up at each thread's first call at the latest, which takes no lock of this program's.
template <class Object>
int call_next(std::atomic<int (*)(Object*)>& known, const char* name, Object* object) {
  auto next = known.load(std::memory_order_relaxed);
  if (next == nullptr) known = next = reinterpret_cast<int (*)(Object*)>(::dlsym(RTLD_NEXT, name));
  return next(object);
}

std::atomic<int (*)(pthread_mutex_t*)> next_lock{nullptr};
std::atomic<int (*)(pthread_cond_t*)> next_broadcast{nullptr};

}  // namespace

extern "C" int pthread_mutex_lock(pthread_mutex_t* mutex) noexcept {
  ++lock_count;
  return call_next(next_lock, "pthread_mutex_lock", mutex);
}

extern "C" int pthread_cond_broadcast(pthread_cond_t* condition) noexcept {
  ++lock_count;
  return call_next(next_broadcast, "pthread_cond_broadcast", condition);
}

#endif
