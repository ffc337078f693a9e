// Ranks as threads, over a real group, with named operations.
#pragma once

#include <ddp/named_operations.hpp>
#include <ddp/process_group.hpp>

#include "kvs/memory_store.hpp"
#include "unit/kvs/rank_threads.hpp"

namespace ddp::test {

/// Calls @p body in a thread of each rank.
inline void run_named(int ranks, const NamedOptions& options,
                      const std::function<void(int rank, NamedOperations& named)>& body) {
  static int runs = 0;
  const auto hub = std::make_shared<kvs::MemoryHub>(ranks);
  const std::string name = "named" + std::to_string(++runs);
  run_ranks(ranks, [&](int rank) {
    const ProcessGroup group = make_process_group(std::make_unique<kvs::MemoryStore>(hub, rank), {.name = name});
    NamedOperations named(group, options);
    body(rank, named);
  });
}

inline NamedCall reduction(const std::string& name, std::vector<float>& values, int set = 0) {
  return {.kind = NamedKind::all_reduce, .name = name, .set = set, .tensors = {values}};
}

/// Waits; the error that it ended with.
inline std::optional<Error> end_of(const NamedHandle& handle) {
  EXPECT_TRUE(handle.wait(Deadline::after(std::chrono::seconds(60)))) << "an operation hangs";
  return handle.error();
}
inline void expect_success(const NamedHandle& handle) {
  const auto error = end_of(handle);
  EXPECT_FALSE(error) << error->what();
}

}  // namespace ddp::test
