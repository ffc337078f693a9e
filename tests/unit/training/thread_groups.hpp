// A real group whose ranks are threads of the test.
#pragma once

#include <barrier>

#include "collectives/group_engine.hpp"
#include "collectives/host/host_backend.hpp"
#include "unit/kvs/rank_threads.hpp"

namespace ddp::test {

/// Runs @p body as each rank of a group of @p size over the host backend. World ranks are ten times those of the group.
inline void run_group(int size, const std::function<void(ProcessGroup&)>& body) {
  static std::atomic<int> groups{0};
  const std::string name = "training " + std::to_string(++groups);
  std::vector<Bytes> addresses(static_cast<std::size_t>(size));
  std::vector<world::PeerEndpoint> endpoints(static_cast<std::size_t>(size));
  std::barrier ready(size);
  run_ranks(size, [&](int rank) {
    collectives::GroupMembers members{
        .name = name, .rank = rank, .channel = std::make_shared<world::PeerChannel>("127.0.0.1")};
    for (int each = 0; each < size; ++each) members.global_ranks.push_back(each * 10);
    BackendConfig config;
    config.group = name;
    config.rank = rank;
    config.size = size;
    config.nodes.assign(static_cast<std::size_t>(size), 0);
    config.interface_address = "127.0.0.1";
    auto backend = collectives::host::create(config, "0");
    addresses[static_cast<std::size_t>(rank)] = backend->address();
    endpoints[static_cast<std::size_t>(rank)] = {
        .rank = rank * 10, .address = "127.0.0.1", .port = members.channel->port(), .token = members.channel->token()};
    ready.arrive_and_wait();
    members.endpoints = endpoints;
    backend->connect(addresses, soon(60'000));
    std::vector<collectives::GroupBackend> backends;
    backends.push_back({.name = "host", .backend = std::move(backend)});
    ProcessGroup group{collectives::GroupEngine::make(std::move(members), std::move(backends),
                                                      collectives::ConnectOptions{}, std::chrono::seconds(60))};
    body(group);
  });
}

}  // namespace ddp::test
