// Counts what the calling thread takes from the heap, and makes it run out.
#pragma once

namespace ddp::test {

/// Calls of operator new, malloc, calloc and realloc by this thread so far. Sanitizers have their own malloc: under
/// them, only operator new counts.
std::uint64_t allocations_of_this_thread() noexcept;

/// Makes one of this thread's allocations by operator new fail, after @p others more; negative: none.
void fail_an_allocation(int others) noexcept;

// Counts the locks that the calling thread takes.

/// Mutexes locked, and condition variables signalled, by this thread so far. 0 under sanitizers, which have
/// pthread_mutex_lock for themselves.
std::uint64_t locks_of_this_thread() noexcept;

}  // namespace ddp::test
