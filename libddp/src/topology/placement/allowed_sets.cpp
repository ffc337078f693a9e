#include "topology/placement/allowed_sets.hpp"

#include <algorithm>

#include <fmt/format.h>

#include <ddp/error.hpp>

namespace ddp::topology {
namespace {

[[noreturn]] void reject(std::string cause, std::string hint) {
  throw Error{{.code = ErrorCode::invalid_argument,
               .attempted = "placing ranks on a node",
               .cause = std::move(cause),
               .hint = std::move(hint)}};
}

}  // namespace

AllowedSets::AllowedSets(const Topology& topology, const PlacementRequest& request) {
  const std::size_t num_ranks = static_cast<std::size_t>(request.num_ranks);
  const std::size_t given = request.allowed.size();
  if (given > 1 && given != num_ranks) {
    reject(fmt::format("{} sets of allowed processors for {} ranks", given, num_ranks),
           "give one for all ranks, one for each, or none");
  }
  for (std::size_t i = 0; i < std::max<std::size_t>(given, 1); ++i) {
    const CpuSet& wanted = given == 0 ? topology.allowed_cpus() : request.allowed[i];
    CpuSet set = wanted & topology.cpus();
    if (set.empty()) {
      reject(fmt::format("the allowed processors{} ({}) are none of those of the machine ({})",
                         given > 1 ? fmt::format(" of local rank {}", i) : "",
                         wanted.empty() ? "an empty set" : wanted.to_string(), topology.cpus().to_string()),
             fmt::format("is {} the machine that the ranks run on?", topology.source()));
    }
    all_ = all_ | set;
    sets_.push_back(std::move(set));
  }
  sets_.resize(num_ranks, sets_.front());

  CpuSet seen;
  for (int rank = 0; rank < request.num_ranks; ++rank) {
    const auto group = std::find_if(groups_.begin(), groups_.end(),
                                    [&](const std::vector<int>& ranks) { return of(ranks.front()) == of(rank); });
    if (group != groups_.end()) {
      group->push_back(rank);
      continue;
    }
    groups_.push_back({rank});
    if (seen.intersects(of(rank))) groups_disjoint_ = false;
    seen = seen | of(rank);
  }
}

}  // namespace ddp::topology
