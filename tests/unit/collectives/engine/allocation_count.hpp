// Counts what the calling thread takes from the heap, and makes it run out.
#pragma once

#include <cstdint>

namespace ddp::test {

/// Calls of operator new, malloc, calloc and realloc by this thread so far. Sanitizers have their own malloc: under
/// them, only operator new counts.
std::uint64_t allocations_of_this_thread() noexcept;

/// Makes one of this thread's allocations by operator new fail, after @p others more; negative: none.
void fail_an_allocation(int others) noexcept;

}  // namespace ddp::test
