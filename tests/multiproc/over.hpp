// What ranks of a test communicate over.
#pragma once

#include <ostream>
#include <string>

namespace ddp::test {

struct Over {
  const char* name;     ///< of the test's instance
  const char* backend;  ///< DDP_BACKEND=...
  int memory_domains;   ///< over which ranks are dealt in turn
};
inline void PrintTo(const Over& over, std::ostream* out) { *out << over.name; }

inline constexpr Over kGloo{"gloo", "DDP_BACKEND=gloo", 1};
inline constexpr Over kSharedMemory{"host", "DDP_BACKEND=host", 1};
/// Shared memory in two domains, TCP between them.
inline constexpr Over kTwoNodes{"two_nodes", "DDP_BACKEND=host", 2};

}  // namespace ddp::test
