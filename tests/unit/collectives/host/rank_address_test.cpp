#include "collectives/host/rank_address.hpp"

#include "collectives/shm/segment_layout.hpp"
#include "support/message_check.hpp"

namespace ddp::collectives::host {
namespace {

/// A rank of host @p host.
shm::EndpointAddress on_host(int host) {
  shm::EndpointAddress address;
  address.boot_id[0] = static_cast<std::byte>(host);
  address.network_namespace = 4'026'531'840;
  address.user = 1000;
  return address;
}

RankAddress rank(const shm::EndpointAddress& memory, std::string domain = "") {
  return {
      .domain = std::move(domain), .memory_left = 8U << 20U, .shared_memory = memory, .tcp = Bytes(3, std::byte{7})};
}

TEST(RankAddress, IsAMessage) { tests::check_message<RankAddress>(); }

TEST(Domains, AreTheRanksOfAHost) {
  const Domains found =
      find_domains({rank(on_host(1)), rank(on_host(2)), rank(on_host(1)), rank(on_host(2))}, {0, 1, 0, 1});
  EXPECT_THAT(found.leaders, ElementsAre(0, 1, 0, 1));
  EXPECT_THAT(found.reasons, ElementsAre("", "", "", ""));
}

TEST(Domains, ArePartedByNamespaceUserAndRefusal) {
  shm::EndpointAddress container = on_host(1);
  container.network_namespace += 1;
  shm::EndpointAddress stranger = on_host(1);
  stranger.user = 1001;
  shm::EndpointAddress unable = on_host(1);
  unable.refusal = "memfd_create: EPERM (1)";
  const Domains found = find_domains({rank(on_host(1)), rank(container), rank(stranger), rank(unable), rank(container),
                                      rank(on_host(1)), rank(unable)},
                                     {0, 0, 0, 0, 0, 0, 0});
  EXPECT_THAT(found.leaders, ElementsAre(0, 1, 2, 3, 1, 0, 6));
  EXPECT_THAT(found.reasons[1], HasSubstr("rank 1 does not share memory with rank 0 of its node"));
  EXPECT_THAT(found.reasons[1], HasSubstr("network namespaces"));
  EXPECT_THAT(found.reasons[2], HasSubstr("users"));
  EXPECT_THAT(found.reasons[3], HasSubstr("memfd_create: EPERM (1)"));
  EXPECT_THAT(found.reasons[5], IsEmpty());
}

TEST(Domains, ArePartedByTheirNames) {
  const Domains found = find_domains({rank(on_host(1), "a"), rank(on_host(1), "b"), rank(on_host(1), "a")}, {0, 0, 0});
  EXPECT_THAT(found.leaders, ElementsAre(0, 1, 0));
  EXPECT_THAT(found.reasons[1], HasSubstr("DDP_MEMORY_DOMAIN is 'a' and 'b'"));
}

TEST(Domains, DissolveWhereARankHasNoMemoryLeft) {
  RankAddress poor = rank(on_host(1));
  poor.memory_left = 1000;
  const Domains found =
      find_domains({rank(on_host(1)), rank(on_host(2)), poor, rank(on_host(1)), rank(on_host(2))}, {0, 1, 0, 0, 1});
  EXPECT_THAT(found.leaders, ElementsAre(0, 1, 2, 3, 1));
  EXPECT_THAT(found.reasons[3], HasSubstr("rank 2 has 0 KiB of DDP_SHM_MIB left"));
  EXPECT_THAT(found.reasons[4], IsEmpty());
}

TEST(Domains, HaveAsManyRanksAsASegment) {
  const std::vector<RankAddress> addresses(static_cast<std::size_t>(shm::kMaxRanks) + 2, rank(on_host(1)));
  const Domains found = find_domains(addresses, std::vector<int>(addresses.size(), 0));
  EXPECT_EQ(found.leaders[static_cast<std::size_t>(shm::kMaxRanks) - 1], 0);
  EXPECT_EQ(found.leaders[static_cast<std::size_t>(shm::kMaxRanks) + 1], shm::kMaxRanks);
  EXPECT_THAT(found.reasons.back(), HasSubstr("at most"));
}

}  // namespace
}  // namespace ddp::collectives::host
