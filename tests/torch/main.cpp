// One rank: torch_rank SCENARIO... runs them one after another and prints DONE.
#include <cstdio>
#include <exception>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>

#include <ddp/ddp.hpp>

#include "scenarios.hpp"

int main(int argc, char** argv) {
  const std::map<std::string, std::function<void(ddp::ProcessGroup)>> scenarios{
      {"equal_to_one_process", torch_test::equal_to_one_process},
      {"modules_of_all_kinds", torch_test::modules_of_all_kinds},
      {"exchanges_of_all_kinds", torch_test::exchanges_of_all_kinds},
      {"killed_in_backward", torch_test::killed_in_backward},
      {"tensor_collectives", torch_test::tensor_collectives},
      {"c10d_collectives", torch_test::c10d_collectives},
  };
  try {
    ddp::World world = ddp::World::init();
    const ddp::ProcessGroup group = ddp::make_process_group(world);
    for (int i = 1; i < argc; ++i) {
      const std::string name = argv[i];
      if (name == "train_from_files" && i + 1 < argc) {
        torch_test::train_from_files(group, argv[++i]);
      } else if (scenarios.contains(name)) {
        scenarios.at(name)(group);
      } else {
        throw std::runtime_error("no scenario " + name);
      }
    }
    std::printf("DONE\n");
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "torch_rank: %s\n", error.what());
    return 1;
  }
}
