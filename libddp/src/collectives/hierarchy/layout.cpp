#include "collectives/hierarchy/layout.hpp"

#include <algorithm>
#include <map>

namespace ddp::collectives::hierarchy {

Layout::Layout(int rank, std::span<const int> labels) : rank_(rank) {
  std::map<int, int> domains;  // by label
  for (std::size_t each = 0; each < labels.size(); ++each) {
    const auto [place, first] = domains.emplace(labels[each], domains.size());
    if (first) members_.emplace_back();
    std::vector<int>& members = members_[static_cast<std::size_t>(place->second)];
    domain_of_.push_back(place->second);
    index_of_.push_back(static_cast<int>(members.size()));
    members.push_back(static_cast<int>(each));
    most_members_ = std::max(most_members_, members.size());
  }
}

}  // namespace ddp::collectives::hierarchy
