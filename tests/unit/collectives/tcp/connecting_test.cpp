// How ranks come to their connections where many come at once, both of a pair do, or one is slow to answer.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <numeric>
#include <random>
#include <set>

#include "base/socket.hpp"
#include "collectives/tcp/admission.hpp"
#include "collectives/tcp/mesh.hpp"
#include "collectives/tcp/outbound.hpp"
#include "collectives/tcp/tcp_backend.hpp"
#include "unit/collectives/backend_ranks.hpp"
#include "unit/collectives/checked_call.hpp"

namespace ddp::collectives::tcp {
namespace {

using testing::CheckedCall;
using testing::soon;

Bytes record_of(std::uint16_t port) {
  return encode(RankRecord{.address = "127.0.0.1", .port = port, .secret = random_key()});
}

/// More than strangers may hold, all of one address, before the first has proven anything.
TEST(TcpConnecting, AllRanksOfAHostMayComeAtOnce) {
  constexpr int kRanks = static_cast<int>(Admission::kMostStrangers) + 40;
  prepare_proofs();
  Admission admission("127.0.0.1");
  const std::vector<Bytes> records(kRanks, record_of(admission.port()));
  const MeshIdentity identity(0, records);
  admission.begin(identity);
  std::vector<std::unique_ptr<MeshIdentity>> identities;
  std::vector<std::unique_ptr<Outbound>> attempts;
  for (int rank = 1; rank < kRanks; ++rank) {
    identities.push_back(std::make_unique<MeshIdentity>(rank, records));
    attempts.push_back(std::make_unique<Outbound>(*identities.back(), 0, "127.0.0.1"));
  }
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(admission.advance().empty());
  std::set<int> proven;
  std::vector<base::UniqueFd> held;
  for (const Deadline limit = soon(); proven.size() + 1 < kRanks && !limit.expired();) {
    for (const auto& attempt : attempts) ASSERT_EQ(attempt->advance(), Outbound::State::pending) << attempt->problem();
    for (Admission::Proven& each : admission.advance()) {
      proven.insert(each.rank);
      held.push_back(std::move(each.socket));
    }
  }
  EXPECT_EQ(proven.size() + 1, kRanks);
}

/// In whatever order the ranks move, and however slow some are: each pair agrees on one of its connections.
TEST(TcpConnecting, RanksThatConnectToEachOtherAtOnceAgree) {
  constexpr int kRanks = 6;
  std::vector<int> everybody(kRanks);
  std::iota(everybody.begin(), everybody.end(), 0);
  for (unsigned seed = 0; seed < 30; ++seed) {
    std::mt19937 random(seed);
    std::vector<std::shared_ptr<TcpMesh>> meshes;
    std::vector<Bytes> addresses;
    for (int rank = 0; rank < kRanks; ++rank) {
      // the higher rank connects at once, too
      meshes.push_back(std::make_shared<TcpMesh>(MeshConfig{.group = "crossing",
                                                            .rank = rank,
                                                            .size = kRanks,
                                                            .interface_address = "127.0.0.1",
                                                            .wait_for_lower = std::chrono::milliseconds(0)}));
      addresses.push_back(meshes.back()->address());
    }
    std::vector<std::unique_ptr<Backend>> backends;
    std::vector<std::unique_ptr<CheckedCall>> calls;
    std::vector<Operation> operations;
    std::vector<Request*> requests;
    for (int rank = 0; rank < kRanks; ++rank) {
      TcpMesh& mesh = *meshes[static_cast<std::size_t>(rank)];
      mesh.connect(addresses);
      backends.push_back(make_backend(meshes[static_cast<std::size_t>(rank)], 0, everybody));
      calls.push_back(std::make_unique<CheckedCall>(
          testing::Call{.kind = OperationKind::all_to_all, .count = 10}, kRanks, rank, 1));
      operations.push_back(calls.back()->operation());
    }
    std::vector<int> turns;  // some ranks move 30 times as often as others
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      requests.push_back(&backends[rank]->init({&operations[rank], 1}, soon()));
      turns.insert(turns.end(), random() % 2 == 0 ? 1 : 30, static_cast<int>(rank));
      requests.back()->post();
    }
    std::set<int> running(everybody.begin(), everybody.end());
    while (!running.empty()) {
      const auto rank = static_cast<std::size_t>(turns[random() % turns.size()]);
      const Outcome outcome = requests[rank]->poll();
      if (outcome == Outcome::running) continue;
      ASSERT_EQ(outcome, Outcome::ok) << "seed " << seed << ": " << requests[rank]->failure().cause;
      running.erase(static_cast<int>(rank));
    }
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      requests[rank]->release();
      calls[rank]->check();
    }
    for (const auto& mesh : meshes) mesh->close(soon());
  }
}

/// A lower rank that has connected, but is slow to be heard, answers fewer and fewer questions.
TEST(TcpConnecting, TheHigherRankAsksMoreSeldomEachTime) {
  prepare_proofs();
  Admission lower("127.0.0.1");
  TcpMesh higher({.group = "asking", .rank = 1, .size = 2, .interface_address = "127.0.0.1"});
  const std::vector<Bytes> records{record_of(lower.port()), higher.address()};
  const MeshIdentity identity(0, records);
  lower.begin(identity);
  higher.connect(records);
  higher.link(0);
  int attempts = 0;
  for (const Deadline end = Deadline::after(std::chrono::seconds(1)); !end.expired();) {
    higher.progress();
    for (const Admission::Proven& proven : lower.advance()) {
      const Verdict verdict = Verdict::crossed;
      ASSERT_EQ(::send(proven.socket.get(), &verdict, sizeof verdict, MSG_NOSIGNAL), 1);
      ++attempts;
    }
    higher.rest(std::chrono::milliseconds(1));
  }
  EXPECT_GE(attempts, 1);
  EXPECT_LE(attempts, 5);  // at 100, 200, 400 and 800 ms
}

/// Of @p port's connections made by this process: how many seconds apart their probes are.
int probe_interval_of(std::uint16_t port) {
  for (int fd = 3; fd < 1000; ++fd) {
    sockaddr_in peer{};
    socklen_t size = sizeof peer;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &size) != 0 || ntohs(peer.sin_port) != port) continue;
    int seconds = 0;
    size = sizeof seconds;
    ::getsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &seconds, &size);
    return seconds;
  }
  return -1;
}

/// Hundreds of ranks of a host that probe hundreds of others every second would lose most of what they send.
TEST(TcpConnecting, ProbesOfManyRanksAreFew) {
  const std::vector<std::pair<int, int>> cases{{2, 1}, {64, 4}, {512, 7}};
  for (const auto& [ranks, seconds] : cases) {
    const base::UniqueFd silent = base::listen_tcp("127.0.0.1");
    TcpMesh mesh({.group = "probing", .rank = 0, .size = ranks, .interface_address = "127.0.0.1"});
    std::vector<Bytes> records(static_cast<std::size_t>(ranks), record_of(base::local_port(silent.get())));
    records.front() = mesh.address();
    mesh.connect(records);
    mesh.link(1);
    mesh.progress();
    EXPECT_EQ(probe_interval_of(base::local_port(silent.get())), seconds) << ranks;
  }
}

}  // namespace
}  // namespace ddp::collectives::tcp
