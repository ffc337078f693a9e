#include "store_server/witness_directory.hpp"

namespace ddp::store_server {

void WitnessDirectory::add(int witness, const Statement& statement) {
  hosts_.insert_or_assign(statement.host, witness);
  for (const PeerAddress& address : std::set<PeerAddress>(statement.addresses.begin(), statement.addresses.end()))
    by_address_.emplace(address, witness);
}

std::vector<int> WitnessDirectory::at(const PeerAddress& address) const {
  std::vector<int> witnesses;
  const auto [begin, end] = by_address_.equal_range(address);
  for (auto found = begin; found != end; ++found) witnesses.push_back(found->second);
  return witnesses;
}

void WitnessDirectory::asked(std::uint64_t serial, int client, const std::vector<int>& witnesses) {
  questions_.insert_or_assign(serial, Open{.client = client, .witnesses = {witnesses.begin(), witnesses.end()}});
}

std::optional<int> WitnessDirectory::answered(int witness, std::uint64_t serial) {
  const auto open = questions_.find(serial);
  if (open == questions_.end() || open->second.witnesses.erase(witness) == 0) return std::nullopt;
  const int client = open->second.client;
  if (open->second.witnesses.empty()) questions_.erase(open);
  return client;
}

std::vector<int> WitnessDirectory::remove(int witness) {
  std::erase_if(by_address_, [witness](const auto& entry) { return entry.second == witness; });
  std::erase_if(hosts_, [witness](const auto& entry) { return entry.second == witness; });
  std::vector<int> unanswered;
  for (auto open = questions_.begin(); open != questions_.end();) {
    const bool concerned = open->second.witnesses.erase(witness) > 0;
    if (concerned && open->second.witnesses.empty()) {
      unanswered.push_back(open->second.client);
      open = questions_.erase(open);
    } else {
      ++open;
    }
  }
  return unanswered;
}

}  // namespace ddp::store_server
