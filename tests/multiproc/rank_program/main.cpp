// One rank of a test job: `rank_program SCENARIO [ARGUMENT...]`, started by tests under every launcher.
#include <cstdio>
#include <functional>
#include <map>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "rank_program/scenario.hpp"

namespace {

using namespace ddp::test;

const std::map<std::string, std::function<void(ddp::World&, Arguments)>, std::less<>>& scenarios() {
  static const std::map<std::string, std::function<void(ddp::World&, Arguments)>, std::less<>> table{
      {"world", [](ddp::World& world, Arguments) { print_world(world); }},
      {"binding", [](ddp::World& world, Arguments) { print_binding(world); }},
      {"traffic", &make_traffic},
      {"collectives", [](ddp::World& world, Arguments) { run_collectives(world); }},
      {"subgroups", [](ddp::World& world, Arguments) { run_subgroups(world); }},
      {"ordering", [](ddp::World& world, Arguments) { run_ordering(world); }},
      {"misuse", [](ddp::World& world, Arguments) { run_misuse(world); }},
      {"kvs", [](ddp::World& world, Arguments) { run_kvs(world); }},
      {"fewer-stores", [](ddp::World& world, Arguments) { make_fewer_stores(world); }},
      {"loop", &loop_all_reduce},
      {"differ", &call_differently},
      {"exchange", &exchange_differently},
      {"hang", &hang_on_purpose},
      {"parameters", &differ_in_parameters},
      {"steps", &take_steps},
      {"reducer", [](ddp::World& world, Arguments) { run_reducer(world); }},
      {"reducer-fault", &fail_in_reducer},
      {"reducer-missing", [](ddp::World& world, Arguments) { miss_a_gradient(world); }},
      {"comm-hooks", [](ddp::World& world, Arguments) { run_comm_hooks(world); }},
      {"hook-loss", &lose_a_rank_in_a_hook},
      {"checkpoints", &save_checkpoints},
      {"checkpoints_in_memory", &keep_in_memory},
      {"full-disk", &fill_the_disk},
      {"exact-average", [](ddp::World& world, Arguments) { train_exactly(world); }},
      {"uneven-inputs", [](ddp::World& world, Arguments) { train_on_uneven_inputs(world); }},
      {"training-modes", [](ddp::World& world, Arguments) { train_in_all_modes(world); }},
  };
  return table;
}

void print_error(int rank, const ddp::Error& error) {
  fmt::print("ERROR rank={} code={} ranks=[{}] {}\n", rank, to_string(error.code()), fmt::join(error.ranks(), ","),
             error.what());
}

}  // namespace

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const auto scenario = arguments.empty() ? scenarios().end() : scenarios().find(arguments[0]);
  if (scenario == scenarios().end()) {
    fmt::print(stderr, "usage: rank_program SCENARIO [ARGUMENT...]\n");
    return 2;
  }
  int rank = -1;
  int status = 0;
  try {
    ddp::World world = ddp::World::init({.keep_session = std::getenv("TEST_LEAVE") == nullptr});
    rank = world.rank();
    try {
      scenario->second(world, std::span(arguments).subspan(1));
    } catch (const ddp::Error& error) {
      print_error(rank, error);
      status = 3;
    }
  } catch (const ddp::Error& error) {
    print_error(rank, error);
    status = 4;
  } catch (const std::exception& error) {
    fmt::print("FAILED rank={} {}\n", rank, error.what());
    status = 1;
  }
  if (status == 0) fmt::print("DONE rank={}\n", rank);
  std::fflush(stdout);
  return status;
}
