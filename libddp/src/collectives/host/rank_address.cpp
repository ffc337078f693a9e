#include "collectives/host/rank_address.hpp"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "base/byte_stream.hpp"
#include "collectives/shm/segment_layout.hpp"

namespace ddp::collectives::host {
namespace {

std::string why_apart(const RankAddress& a, const shm::EndpointAddress& a_memory, const RankAddress& b,
                      const shm::EndpointAddress& b_memory) {
  if (a.domain != b.domain) return fmt::format("DDP_MEMORY_DOMAIN is '{}' and '{}'", a.domain, b.domain);
  return shm::why_not_shared(a_memory, b_memory);
}

}  // namespace

Bytes RankAddress::pack() const {
  base::ByteWriter writer;
  writer.text(domain).blob(shared_memory).blob(tcp);
  return std::move(writer).bytes();
}

RankAddress RankAddress::parse(const Bytes& bytes) {
  base::ByteReader reader(bytes, "address of a rank's CPU backend");
  RankAddress address;
  address.domain = reader.text();
  const auto memory = reader.blob();
  address.shared_memory.assign(memory.begin(), memory.end());
  const auto tcp = reader.blob();
  address.tcp.assign(tcp.begin(), tcp.end());
  reader.expect_end();
  return address;
}

Domains find_domains(const std::vector<RankAddress>& addresses, const std::vector<int>& nodes) {
  std::vector<shm::EndpointAddress> memory;
  for (const RankAddress& address : addresses) memory.push_back(shm::EndpointAddress::parse(address.shared_memory));
  Domains found;
  std::map<int, int> members;        // of each leader's domain: how many
  std::map<int, std::size_t> first;  // of each node: its lowest rank
  for (std::size_t rank = 0; rank < addresses.size(); ++rank) {
    const auto shares = [&](const auto& domain) {
      const auto leader = static_cast<std::size_t>(domain.first);
      return domain.second < shm::kMaxRanks &&
             why_apart(addresses[leader], memory[leader], addresses[rank], memory[rank]).empty();
    };
    const auto domain = std::find_if(members.begin(), members.end(), shares);
    const int leader = domain == members.end() ? static_cast<int>(rank) : domain->first;
    ++members[leader];
    found.leaders.push_back(leader);

    std::string reason;
    const std::size_t lowest = rank < nodes.size() ? first.emplace(nodes[rank], rank).first->second : rank;
    if (leader != found.leaders[lowest]) {
      reason = why_apart(addresses[lowest], memory[lowest], addresses[rank], memory[rank]);
      if (reason.empty()) reason = fmt::format("a domain has at most {} ranks", shm::kMaxRanks);
      reason =
          fmt::format("rank {} does not share memory with rank {} of its node, but uses TCP: {}", rank, lowest, reason);
    }
    found.reasons.push_back(std::move(reason));
  }
  return found;
}

}  // namespace ddp::collectives::host
