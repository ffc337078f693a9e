// How ranks come to their connections where many come at once, both of a pair do, or one is slow to answer.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include "base/message.hpp"
#include "base/socket.hpp"
#include "collectives/tcp/handshake.hpp"
#include "collectives/tcp/link.hpp"
#include "collectives/tcp/mesh.hpp"
#include "unit/collectives/backend_ranks.hpp"

namespace ddp::collectives::tcp {
namespace {

using testing::soon;

Bytes record_of(std::uint16_t port) {
  return base::encode(RankRecord{.address = "127.0.0.1", .port = port, .secret = random_key()});
}

/// More than strangers may hold, all of one address, before the first has proven anything.
TEST(TcpConnecting, AllRanksOfAHostMayComeAtOnce) {
  constexpr int kRanks = static_cast<int>(Admission::kMostStrangers) + 40;
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

/// The other rank of a mesh of two, by hand.
struct OtherRank {
  OtherRank(int rank, const TcpMesh& mesh) {
    records = {record_of(admission.port()), record_of(admission.port())};
    records[static_cast<std::size_t>(1 - rank)] = mesh.address();
    identity.emplace(rank, records);
    admission.begin(*identity);
  }
  Admission admission{"127.0.0.1"};
  std::vector<Bytes> records;
  std::optional<MeshIdentity> identity;
};

/// Both have proven themselves on a connection of their own before either has an answer: that of the lower rank stays.
TEST(TcpConnecting, OfTwoThatConnectAtOnceTheLowerRanksConnectionStays) {
  for (const int rank : {0, 1}) {
    TcpMesh mesh({.group = "crossing",
                  .rank = rank,
                  .size = 2,
                  .interface_address = "127.0.0.1",
                  .wait_for_lower = std::chrono::milliseconds(0)});
    OtherRank other(1 - rank, mesh);
    mesh.connect(other.records);
    mesh.link(1 - rank);
    std::vector<Admission::Proven> from_mesh;
    for (const Deadline limit = soon(); from_mesh.empty() && !limit.expired();) {
      mesh.progress();
      from_mesh = other.admission.advance();
    }
    ASSERT_EQ(from_mesh.size(), 1U);
    Outbound to_mesh(*other.identity, rank, "127.0.0.1");
    Outbound::State answer = Outbound::State::pending;
    for (const Deadline limit = soon(); answer == Outbound::State::pending && !limit.expired();) {
      answer = to_mesh.advance();
      mesh.progress();
    }
    EXPECT_EQ(answer, rank == 0 ? Outbound::State::crossed : Outbound::State::welcome) << rank;
    const Verdict verdict = Verdict::welcome;  // rank 1 has closed its own, on which this comes too late
    ::send(from_mesh.front().socket.get(), &verdict, sizeof verdict, MSG_NOSIGNAL);
    const base::UniqueFd chosen = rank == 0 ? std::move(from_mesh.front().socket) : to_mesh.take();
    from_mesh.clear();
    for (int i = 0; i < 200; ++i) mesh.progress();
    EXPECT_FALSE(mesh.failure()) << rank << ": " << mesh.failure()->cause;
    EXPECT_EQ(mesh.missing(), "") << rank;
    EXPECT_TRUE(mesh.link(1 - rank)->is_open());
    mesh.close(soon());
    EXPECT_TRUE(base::wait_for(chosen.get(), POLLIN, soon())) << "a goodbye";
  }
}

/// A lower rank that has connected, but is slow to be heard, answers fewer and fewer questions.
TEST(TcpConnecting, TheHigherRankAsksMoreSeldomEachTime) {
  TcpMesh higher({.group = "asking", .rank = 1, .size = 2, .interface_address = "127.0.0.1"});
  OtherRank lower(0, higher);
  higher.connect(lower.records);
  higher.link(0);
  int attempts = 0;
  const Deadline limit = soon();
  for (const Deadline end = Deadline::after(std::chrono::seconds(1));
       !end.expired() || (attempts == 0 && !limit.expired());) {
    higher.progress();
    for (const Admission::Proven& proven : lower.admission.advance()) {
      const Verdict verdict = Verdict::crossed;
      ASSERT_EQ(::send(proven.socket.get(), &verdict, sizeof verdict, MSG_NOSIGNAL), 1);
      ++attempts;
    }
    higher.rest(std::chrono::milliseconds(1));
  }
  EXPECT_GE(attempts, 1);
  EXPECT_LE(attempts, 5);  // at 100, 200, 400 and 800 ms
}

/// What a connection ended with, though the attempt to send on it was the first to be told.
TEST(TcpConnecting, WhyAConnectionBrokeIsKept) {
  struct Owner final : LinkOwner {
    Placement place(int /*rank*/, const Frame& /*frame*/) override { return {}; }
    void whole(int /*rank*/, const Frame& /*frame*/) override {}
    void ended(int /*rank*/, int error, bool /*garbage*/) override { errors.push_back(error); }
    std::vector<int> errors;
  };
  Owner owner;
  Link link(1, owner);
  const base::UniqueFd listener = base::listen_tcp("127.0.0.1");
  link.open(base::connect_tcp("127.0.0.1", base::local_port(listener.get()), soon()));
  base::UniqueFd other(::accept(listener.get(), nullptr, nullptr));
  const linger reset{.l_onoff = 1, .l_linger = 0};
  ASSERT_EQ(::setsockopt(other.get(), SOL_SOCKET, SO_LINGER, &reset, sizeof reset), 0);
  other.reset();
  ASSERT_TRUE(base::wait_for(link.fd(), POLLIN, soon()));
  link.enqueue_own({.kind = FrameKind::goodbye});
  EXPECT_FALSE(link.flush());
  link.receive();
  EXPECT_EQ(owner.errors, std::vector<int>{ECONNRESET});
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
  const std::vector<std::pair<int, int>> cases{{2, 1}, {200, 3}, {512, 7}};
  for (const auto& [ranks, seconds] : cases) {
    const base::UniqueFd silent = base::listen_tcp("127.0.0.1");
    TcpMesh mesh({.group = "probing", .rank = 0, .size = ranks, .interface_address = "127.0.0.1"});
    std::vector<Bytes> records(static_cast<std::size_t>(ranks), record_of(base::local_port(silent.get())));
    records.front() = mesh.address();
    mesh.connect(records);
    mesh.link(1);
    int found = -1;
    for (const Deadline limit = soon(); found < 0 && !limit.expired();) {
      mesh.progress();
      found = probe_interval_of(base::local_port(silent.get()));
    }
    EXPECT_EQ(found, seconds) << ranks;
  }
}

}  // namespace
}  // namespace ddp::collectives::tcp
