// What World and its store say: facts for tests to compare with the launcher's, and values of many sizes.
#include <cstdlib>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/binding.hpp>

#include "rank_program/scenario.hpp"

namespace ddp::test {

void print_world(World& world) {
  std::vector<int> node_of;
  std::vector<int> local_rank_of;
  std::vector<std::string> node_hosts;
  for (int node = 0; node < world.num_nodes(); ++node) {
    node_hosts.push_back(world.hostname(world.ranks_on_node(node).front()));
  }
  for (int rank = 0; rank < world.world_size(); ++rank) {
    node_of.push_back(world.node_of(rank));
    local_rank_of.push_back(world.local_rank_of(rank));
    check(world.hostname(rank) == node_hosts.at(static_cast<std::size_t>(world.node_of(rank))),
          "ranks of one node have different hosts");
  }
  const auto& local = world.ranks_on_node(world.node_rank());
  check(local.at(static_cast<std::size_t>(world.local_rank())) == world.rank(), "the local ranks are not in order");
  check(static_cast<int>(local.size()) == world.local_world_size(), "the local size is not that of the node");
  fmt::print(
      "WORLD {{\"rank\": {}, \"world_size\": {}, \"local_rank\": {}, \"local_world_size\": {}, \"node_rank\": {}, "
      "\"num_nodes\": {}, \"node_of\": [{}], \"local_rank_of\": [{}], \"node_hosts\": [\"{}\"], \"source\": \"{}\", "
      "\"interface\": \"{}\", \"address\": \"{}\", \"reason\": \"{}\"}}\n",
      world.rank(), world.world_size(), world.local_rank(), world.local_world_size(), world.node_rank(),
      world.num_nodes(), fmt::join(node_of, ","), fmt::join(local_rank_of, ","), fmt::join(node_hosts, "\",\""),
      to_string(world.source()), world.interface_name(), world.interface_address(), world.source_reason());
  // Slurm 22.05 ends a step whose nodes' PMIx servers still connect to one that has ended with its last rank.
  world.key_value_store().fence(Deadline::after(std::chrono::seconds(30)));
}

void print_binding(World& world) {
  const Binding now = Binding::current();
  const auto& placement = world.placement();
  check(!placement || placement->local_rank == world.local_rank(), "the placement is another rank's");
  check(!placement || placement->cpus.contains(now.cpus), "this rank is not bound as placed");
  for (const EnvironmentSetting& setting : world.settings()) {
    check(std::getenv(setting.name.c_str()) == nullptr, "World::init changed the environment");
  }
  world.export_settings();
  for (const EnvironmentSetting& setting : world.settings()) {
    const char* value = std::getenv(setting.name.c_str());
    check(value != nullptr && value == setting.value, "a setting was not exported");
  }
  fmt::print("BINDING rank={} cpus={} placed={}\n", world.rank(), now.cpus.to_string(),
             placement ? placement->cpus.to_string() : "no");
}

void make_traffic(World& world, Arguments arguments) {
  check(arguments.size() == 1, "traffic MIB");
  std::vector<float> values(std::stoul(arguments[0]) * (1024 * 1024 / sizeof(float)), 1.0F);
  make_process_group(world).all_reduce(values).wait();
  check(values.back() == static_cast<float>(world.world_size()), "the sum is wrong");
}

void run_kvs(World& world) {
  KeyValueStore& store = world.key_value_store();
  const Deadline deadline = Deadline::after(std::chrono::seconds(60));
  const auto value = [](int rank, std::size_t size) {
    Bytes bytes(size);  // every byte value occurs, ';' and '\0' included
    for (std::size_t i = 0; i < size; ++i)
      bytes[i] = static_cast<std::byte>((i + static_cast<std::size_t>(rank)) % 256);
    return bytes;
  };
  for (const std::size_t size : {0U, 1U, 1023U, 1024U, 70'000U}) {
    store.put(fmt::format("size.{}", size), value(world.rank(), size));
  }
  // as large as the topology of a large node
  constexpr std::size_t kNodeValueBytes = 150'000;
  if (world.local_rank() == 0) store.put_on_node("for.the.node", value(world.rank(), kNodeValueBytes));
  store.fence(deadline);
  const int leader = world.ranks_on_node(world.node_rank()).front();
  check(store.get_on_node(leader, "for.the.node", deadline) == value(leader, kNodeValueBytes),
        "the value for the node came back changed");
  for (int rank = 0; rank < world.world_size(); ++rank) {
    for (const std::size_t size : {0U, 1U, 1023U, 1024U, 70'000U}) {
      check(store.get(rank, fmt::format("size.{}", size), deadline) == value(rank, size),
            fmt::format("the value of {} bytes of rank {} came back changed", size, rank));
    }
  }
  try {
    store.get(world.world_size() - 1, "never.put", deadline);
    check(false, "a key that was never put was found");
  } catch (const Error& error) {
    check(error.code() == ErrorCode::not_found, fmt::format("a missing key gives: {}", error.what()));
  }
  // a second round sees the second values
  store.put("round", value(world.rank(), 2));
  store.fence(deadline);
  check(store.get(0, "round", deadline) == value(0, 2), "the second fence lost a value");
}

}  // namespace ddp::test
