// One rank that wires up, learns its place and binds itself. Prints the ms since its exec.
//
//   placed_rank none    World::init only
//   placed_rank shared  World::init with DDP_BIND: one rank per node reads the machine for all
//   placed_rank each    World::init, then every rank reads the machine
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string_view>

#include <ddp/ddp.hpp>
#include <ddp/topology.hpp>

#include "wireup/since_exec.h"

int main(int argc, char** argv) try {
  const std::string_view mode = argc == 2 ? argv[1] : "";
  if (mode == "shared") ::setenv("DDP_BIND", "numa", 1);
  ddp::World world = ddp::World::init();
  if (mode == "shared" && !world.placement()) throw std::runtime_error("this rank was not placed");
  if (mode == "each") {
    const auto topology = ddp::Topology::live();
    const auto placements = ddp::place(topology, {.num_ranks = world.local_world_size()});
    ddp::Binding::from(topology, placements.at(static_cast<std::size_t>(world.local_rank()))).apply();
  }
  std::printf("PLACED %.3f\n", static_cast<double>(since_exec_ns()) / 1e6);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "placed_rank: %s\n", error.what());
  return 1;
}
