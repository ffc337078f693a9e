// One connection to each host is probed, another one when it is closed.
#include "collectives/tcp/host_probes.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <gtest/gtest.h>

#include "base/socket.hpp"
#include "collectives/tcp/context.hpp"
#include "collectives/tcp/tcp_backend.hpp"
#include "unit/collectives/backend_ranks.hpp"
#include "unit/collectives/checked_call.hpp"

namespace ddp::collectives::tcp {
namespace {

int option(int socket, int level, int name) {
  int value = -1;
  socklen_t size = sizeof value;
  EXPECT_EQ(::getsockopt(socket, level, name, &value, &size), 0);
  return value;
}
bool is_probed(int socket) { return option(socket, SOL_SOCKET, SO_KEEPALIVE) == 1; }

TEST(HostProbes, OneConnectionToEachHostIsProbed) {
  const base::UniqueFd listener = base::listen_tcp("127.0.0.1");
  const auto connect = [&] {
    return base::connect_tcp("127.0.0.1", base::local_port(listener.get()), testing::soon());
  };
  const base::UniqueFd first = connect();
  const base::UniqueFd second = connect();
  const base::UniqueFd third = connect();
  const base::UniqueFd other = connect();
  HostProbes probes(std::chrono::seconds(20), 5);
  probes.attempt(second.get());
  EXPECT_TRUE(is_probed(second.get()));
  for (const base::UniqueFd* each : {&first, &second, &third}) probes.opened("10.0.0.1", each->get());
  probes.opened("10.0.0.2", other.get());
  const auto probed = [&] {
    return std::vector<bool>{is_probed(first.get()), is_probed(second.get()), is_probed(third.get()),
                             is_probed(other.get())};
  };
  EXPECT_EQ(probed(), (std::vector<bool>{true, false, false, true}));
  EXPECT_EQ(option(first.get(), IPPROTO_TCP, TCP_KEEPIDLE), 5);
  EXPECT_EQ(option(second.get(), IPPROTO_TCP, TCP_USER_TIMEOUT), 0) << "an attempt has one";
  probes.closed("10.0.0.1", second.get());
  EXPECT_EQ(probed(), (std::vector<bool>{true, false, false, true}));
  probes.closed("10.0.0.1", first.get());
  EXPECT_EQ(probed(), (std::vector<bool>{true, false, true, true}));
  EXPECT_EQ(option(third.get(), IPPROTO_TCP, TCP_KEEPIDLE), 5);
}

TEST(HostProbes, OfAMeshWhoseRanksLeave) {
  constexpr int kRanks = 4;
  std::vector<std::shared_ptr<TcpMesh>> meshes;
  testing::BackendRanks group({.name = "Tcp",
                               .create =
                                   [&](const BackendConfig& config) {
                                     meshes.push_back(make_mesh(config));
                                     return make_backend(meshes.back(), 1, {0, 1, 2, 3});
                                   },
                               .size = kRanks});
  std::vector<Bytes> addresses;
  for (const auto& mesh : meshes) addresses.push_back(mesh->address());
  for (const auto& mesh : meshes) mesh->connect(addresses);
  group.on_all([&](int rank) {
    const testing::CheckedCall call({.kind = OperationKind::all_to_all, .count = 10}, kRanks, rank, 1);
    ASSERT_EQ(testing::run(group.at(rank), call.operation()).outcome, Outcome::ok);
  });
  TcpMesh& mesh = *meshes.back();
  std::vector<int> left{0, 1, 2};
  while (!left.empty()) {
    std::vector<int> probed;
    for (const int rank : left) {
      if (is_probed(mesh.link(rank)->fd())) probed.push_back(rank);
    }
    ASSERT_EQ(probed.size(), 1U) << left.size();
    meshes[static_cast<std::size_t>(probed.front())]->close(testing::soon());
    for (const Deadline limit = testing::soon(); mesh.departed(probed.front()) == nullptr && !limit.expired();) {
      mesh.rest(std::chrono::milliseconds(1));
      mesh.progress();
    }
    std::erase(left, probed.front());
  }
  EXPECT_FALSE(mesh.failure());
}

}  // namespace
}  // namespace ddp::collectives::tcp
