// How ranks meet at the leader's socket, which strangers can reach, too; the addresses and packets of that; and how
// much memory they get.
#include "collectives/shm/segment_rendezvous.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <ddp/error.hpp>

#include "collectives/shm/endpoint.hpp"
#include "collectives/shm/segment_layout.hpp"
#include "collectives/shm/shm_backend.hpp"
#include "support/message_check.hpp"
#include "unit/collectives/backend_ranks.hpp"

namespace ddp::collectives::shm {
namespace {

TEST(EndpointAddress, ReadsWhatItWrote) {
  Endpoint endpoint;
  EXPECT_EQ(endpoint.address().refusal, "");
  const auto again = base::decode<EndpointAddress>(base::encode(endpoint.address()));
  EXPECT_EQ(why_not_shared(endpoint.address(), again), "");
  tests::check_message<EndpointAddress>();
}

TEST(EndpointAddress, SaysWhyRanksCannotShareMemory) {
  const EndpointAddress own = Endpoint{}.address();
  EndpointAddress other = own;
  other.boot_id[3] ^= std::byte{1};
  EXPECT_THAT(why_not_shared(own, other), HasSubstr("different hosts"));
  other = own;
  ++other.network_namespace;
  EXPECT_THAT(why_not_shared(own, other), HasSubstr("network namespaces"));
  other = own;
  ++other.user;
  EXPECT_THAT(why_not_shared(own, other), HasSubstr("different users"));
  other = own;
  other.refusal = "memfd_create: Operation not permitted";
  EXPECT_EQ(why_not_shared(other, own), other.refusal);
  EXPECT_EQ(why_not_shared(own, base::decode<EndpointAddress>(base::encode(other))), other.refusal);
}

TEST(JoinMessage, ComesBackWithItsTextCut) {
  tests::check_message<JoinMessage>();
  JoinMessage message{.kind = JoinMessage::Kind::failed, .ranks = {}, .text = std::string(400, 'x')};
  for (int rank = 0; rank < kMaxRanks; ++rank) message.ranks.push_back(rank);
  const auto again = base::decode<JoinMessage>(base::encode(message));
  EXPECT_EQ(again.ranks, message.ranks);
  EXPECT_EQ(again.text, std::string(255, 'x'));
}

/// A group of two whose leader is disturbed before the other rank comes.
struct SegmentRendezvous : ::testing::Test {
  /// @return what the ranks threw: one text each, empty for those that are connected.
  std::array<std::string, 2> form_group_while(const std::function<void(const EndpointAddress&)>& disturb) {
    std::vector<std::unique_ptr<Backend>> backends;
    std::vector<Bytes> addresses;
    for (int rank = 0; rank < 2; ++rank) {
      BackendConfig config;
      config.rank = rank;
      config.size = 2;
      backends.push_back(create(config));
      addresses.push_back(backends.back()->address());
    }
    std::array<std::string, 2> errors;
    const auto connect = [&](std::size_t rank) {
      try {
        backends[rank]->connect(addresses, testing::soon());
        const Operation barrier;
        EXPECT_EQ(testing::run(*backends[rank], barrier).outcome, Outcome::ok);
      } catch (const Error& error) {
        errors[rank] = error.what();
      }
    };
    std::thread leader([&] { connect(0); });
    disturb(base::decode<EndpointAddress>(addresses[0]));
    connect(1);
    leader.join();
    return errors;
  }

  /// What the other side sends within a minute; empty if it closes the connection.
  static std::vector<std::byte> answer(const base::UniqueFd& socket) {
    pollfd waiting{socket.get(), POLLIN, 0};
    EXPECT_EQ(::poll(&waiting, 1, 60'000), 1);
    std::vector<std::byte> bytes(1000);
    const ssize_t size = ::recv(socket.get(), bytes.data(), bytes.size(), 0);
    bytes.resize(static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
    return bytes;
  }
};

TEST_F(SegmentRendezvous, StrangersDoNoHarm) {
  std::vector<base::UniqueFd> silent;
  const auto errors = form_group_while([&](const EndpointAddress& leader) {
    const auto expect_refused = [&](std::span<const std::byte> bytes) {
      const base::UniqueFd socket = connect_to(leader);
      ASSERT_TRUE(socket);
      ::send(socket.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      EXPECT_TRUE(answer(socket).empty());
    };
    JoinMessage hello{.kind = JoinMessage::Kind::hello, .rank = 1};
    expect_refused(base::encode(hello));  // without the token
    hello.secret = leader.token;
    for (const int rank : {0, 2, kMaxRanks - 1}) {
      hello.rank = rank;
      expect_refused(base::encode(hello));
    }
    expect_refused(std::vector<std::byte>(1, std::byte{'G'}));
    expect_refused(std::vector<std::byte>(5000, std::byte{'x'}));
    for (int i = 0; i < 200; ++i) silent.push_back(connect_to(leader));
  });
  EXPECT_EQ(errors[0], "");
  EXPECT_EQ(errors[1], "");
}

/// The leader notices at once that rank 2 is gone, and rank 1 is late.
TEST(SegmentRendezvousOfThree, ALateRankHearsWhichOtherHasEnded) {
  std::vector<std::unique_ptr<Backend>> backends;
  std::vector<Bytes> addresses;
  for (int rank = 0; rank < 3; ++rank) {
    BackendConfig config;
    config.rank = rank;
    config.size = 3;
    backends.push_back(create(config));
    addresses.push_back(backends.back()->address());
  }
  backends[2].reset();
  std::array<std::vector<int>, 2> named;
  const auto connect = [&](std::size_t rank) {
    try {
      backends[rank]->connect(addresses, testing::soon());
    } catch (const Error& error) {
      named[rank] = error.ranks();
    }
    backends[rank].reset();
  };
  std::thread leader([&] { connect(0); });
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  connect(1);
  leader.join();
  EXPECT_EQ(named[0], std::vector<int>{2});
  EXPECT_EQ(named[1], std::vector<int>{2});
}

/// The rank that has the least left decides.
TEST_F(SegmentRendezvous, ARankWithoutBudgetIsToldWhy) {
  base::UniqueFd socket;
  const auto errors = form_group_while([&](const EndpointAddress& leader) {
    JoinMessage hello{.kind = JoinMessage::Kind::hello, .rank = 1};
    hello.secret = leader.token;
    hello.bytes = 0;
    const auto packet = base::encode(hello);
    socket = connect_to(leader);
    ::send(socket.get(), packet.data(), packet.size(), MSG_NOSIGNAL);
    const auto failed = base::decode<JoinMessage>(answer(socket));
    EXPECT_EQ(failed.kind, JoinMessage::Kind::failed);
    EXPECT_THAT(failed.text, HasSubstr("0 bytes are left"));
  });
  EXPECT_THAT(errors[0], HasSubstr("raise DDP_SHM_MIB"));
  EXPECT_THAT(errors[1], HasSubstr("closed"));
}

TEST(MemoryBudget, TheFirstGroupGetsMostAndManyFit) {
  constexpr std::size_t kMiB = 1024 * 1024;
  EXPECT_EQ(choose_region_bytes(8 * kMiB, 2), kMiB);
  EXPECT_EQ(choose_region_bytes(1024 * kMiB, 2), kMiB);
  EXPECT_EQ(choose_region_bytes(1000, 2), 0U);
  std::size_t left = 8 * kMiB;
  int groups = 0;
  for (std::size_t region = choose_region_bytes(left, 4); region != 0; region = choose_region_bytes(left, 4)) {
    EXPECT_LE(region, left);
    left -= region;
    ++groups;
  }
  EXPECT_GE(groups, 30);
}

TEST(MemoryBudget, GroupsGiveTheirShareBack) {
  const std::size_t before = budget_left();
  {
    testing::BackendRanks group(
        testing::Subject{.name = "two", .create = [](const BackendConfig& config) { return create(config); }});
    EXPECT_EQ(budget_left(), before - 2 * choose_region_bytes(before, 2));  // both ranks are of this process
  }
  EXPECT_EQ(budget_left(), before);
}

}  // namespace
}  // namespace ddp::collectives::shm
