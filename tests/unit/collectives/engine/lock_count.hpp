// Counts the locks that the calling thread takes.
#pragma once

#include <cstdint>

namespace ddp::test {

/// Mutexes locked, and condition variables signalled, by this thread so far. 0 under sanitizers, which have
/// pthread_mutex_lock for themselves.
std::uint64_t locks_of_this_thread() noexcept;

}  // namespace ddp::test
