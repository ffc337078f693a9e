// What the scenarios of nccl_rank share.
#pragma once

#include <ddp/process_group.hpp>
#include <ddp/world.hpp>

namespace ddp::test {

inline void say(const std::string& text) {
  fmt::print("{}\n", text);
  std::fflush(stdout);
}
inline void check(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error("check failed: " + what);
}

void train(World& world);
void capture(World& world, bool view, bool hook);
void capture_aside(World& world);
void reduce(World& world, const std::string& steps);
void reduce_otherwise(World& world);
void average_rows(World& world, ProcessGroup& group);
void steps(World& world, int last);
void reshape(World& world, const std::string& folder);

}  // namespace ddp::test
