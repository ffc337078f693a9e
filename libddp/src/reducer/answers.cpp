#include "reducer/answers.hpp"

#include <algorithm>

namespace ddp::reducer {

std::vector<std::pair<std::string, std::vector<int>>> group_answers(const ProcessGroup& group,
                                                                    const std::vector<std::string>& answers) {
  std::vector<std::pair<std::string, std::vector<int>>> groups;
  for (std::size_t rank = 0; rank < answers.size(); ++rank) {
    auto found = std::find_if(groups.begin(), groups.end(), [&](auto& each) { return each.first == answers[rank]; });
    if (found == groups.end()) found = groups.insert(groups.end(), {answers[rank], {}});
    found->second.push_back(group.global_ranks()[rank]);
  }
  return groups;
}

}  // namespace ddp::reducer
