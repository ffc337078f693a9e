// Connects to the key-value store of the launcher that was detected, and reads where the ranks run.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include <ddp/key_value_store.hpp>

#include "world/launch_environment.hpp"
#include "world/node_map.hpp"

namespace ddp::world {

struct JobConnection {
  LaunchEnvironment launch;
  std::unique_ptr<KeyValueStore> store;
  std::optional<NodeMap> nodes;   ///< nothing if the launcher does not say: then from the endpoint records
  std::optional<int> local_rank;  ///< as the launcher says, to be checked
  std::optional<int> node_rank;   ///< as the launcher says, where it gives no map
  bool single_node = false;       ///< known to run on one node only
};

/// Throws as World::init does. @p forced: InitOptions::launch; DDP_LAUNCH is read when it is empty.
/// @param store_name of the keys in a TCPStore: programs that use it one after the other need different ones
JobConnection connect_job(const base::Environment& environment, std::optional<LaunchSource> forced, Deadline deadline,
                          std::string_view store_name = "ddp");

}  // namespace ddp::world
