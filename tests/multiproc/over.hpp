// What ranks of a test communicate over: the backend chooses by who shares memory.
#pragma once

#include <ostream>

namespace ddp::test {

struct Over {
  const char* name;    ///< of the test's instance
  int memory_domains;  ///< over which ranks are dealt in turn
};
inline void PrintTo(const Over& over, std::ostream* out) { *out << over.name; }

inline constexpr Over kSharedMemory{"host", 1};
/// Shared memory in two domains, TCP between them.
inline constexpr Over kTwoNodes{"two_nodes", 2};
/// Each of at most eight ranks is a domain of its own.
inline constexpr Over kTcp{"tcp", 8};

}  // namespace ddp::test
