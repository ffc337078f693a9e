// Counts what the calling thread takes from the heap.
#pragma once

#include <cstdint>

namespace ddp::test {

/// Calls of operator new, malloc, calloc and realloc by this thread so far. Sanitizers have their own malloc: under
/// them, only operator new counts.
std::uint64_t allocations_of_this_thread() noexcept;

}  // namespace ddp::test
