#include "collectives/host/rank_address.hpp"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "collectives/shm/segment_layout.hpp"

namespace ddp::collectives::host {
namespace {

std::string why_apart(const RankAddress& a, const RankAddress& b) {
  if (a.domain != b.domain) return fmt::format("DDP_MEMORY_DOMAIN is '{}' and '{}'", a.domain, b.domain);
  return shm::why_not_shared(a.shared_memory, b.shared_memory);
}

/// Leaders by rank, as far as memory can be shared at all.
std::vector<int> group(const std::vector<RankAddress>& addresses) {
  std::vector<int> leaders;
  std::map<int, int> members;  // of each leader's domain: how many
  for (std::size_t rank = 0; rank < addresses.size(); ++rank) {
    const auto shares = [&](const auto& domain) {
      const auto leader = static_cast<std::size_t>(domain.first);
      return domain.second < shm::kMaxRanks && why_apart(addresses[leader], addresses[rank]).empty();
    };
    const auto domain = std::find_if(members.begin(), members.end(), shares);
    leaders.push_back(domain == members.end() ? static_cast<int>(rank) : domain->first);
    ++members[leaders.back()];
  }
  return leaders;
}

/// In each leader's domain: the rank that has too little memory left for the domain's segment.
std::map<int, std::size_t> find_poor(const std::vector<RankAddress>& addresses, const std::vector<int>& leaders) {
  std::map<int, std::size_t> poor;
  for (std::size_t rank = 0; rank < addresses.size(); ++rank) {
    const auto ranks = static_cast<int>(std::count(leaders.begin(), leaders.end(), leaders[rank]));
    if (ranks > 1 && shm::choose_region_bytes(addresses[rank].memory_left, ranks) == 0) {
      poor.emplace(leaders[rank], rank);
    }
  }
  return poor;
}

}  // namespace

Domains find_domains(const std::vector<RankAddress>& addresses, const std::vector<int>& nodes) {
  const std::vector<int> leaders = group(addresses);
  const std::map<int, std::size_t> poor = find_poor(addresses, leaders);
  Domains found;
  std::map<int, std::size_t> first;  // of each node: its lowest rank
  for (std::size_t rank = 0; rank < addresses.size(); ++rank) {
    const auto without = poor.find(leaders[rank]);
    found.leaders.push_back(without == poor.end() ? leaders[rank] : static_cast<int>(rank));
    std::string reason;
    const std::size_t lowest = rank < nodes.size() ? first.emplace(nodes[rank], rank).first->second : rank;
    if (found.leaders[rank] != found.leaders[lowest]) {
      reason = why_apart(addresses[lowest], addresses[rank]);
      if (reason.empty() && without != poor.end()) {
        reason = fmt::format("rank {} has {} KiB of DDP_SHM_MIB left", without->second,
                             addresses[without->second].memory_left / 1024);
      }
      if (reason.empty()) reason = fmt::format("a domain has at most {} ranks", shm::kMaxRanks);
      reason =
          fmt::format("rank {} does not share memory with rank {} of its node, but uses TCP: {}", rank, lowest, reason);
    }
    found.reasons.push_back(std::move(reason));
  }
  return found;
}

}  // namespace ddp::collectives::host
