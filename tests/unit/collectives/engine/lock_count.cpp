#include "unit/collectives/engine/lock_count.hpp"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>

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
