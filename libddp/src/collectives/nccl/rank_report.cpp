#include "collectives/nccl/rank_report.hpp"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "base/log.hpp"
#include "cuda/driver.hpp"

namespace ddp::collectives::nccl {
namespace {

// As PyTorch does; NCCL's guide asks for at most 128 to 256 ranks a root.
constexpr int kRanksPerRoot = 128;

std::string name_of(const std::vector<RankReport>& reports, int rank) {
  const RankReport& report = reports[static_cast<std::size_t>(rank)];
  return fmt::format("rank {} (process {} on {})", rank, report.process, report.host);
}

/// "ranks 0-2: NCCL 2.28.3 and CUDA 13.0; rank 3: ...", by ascending rank.
template <class Describe>
std::string who_has_what(const std::vector<RankReport>& reports, Describe&& describe) {
  std::vector<std::pair<std::string, std::vector<int>>> sets;
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    const std::string what = describe(reports[rank]);
    auto set = std::find_if(sets.begin(), sets.end(), [&](const auto& each) { return each.first == what; });
    if (set == sets.end()) set = sets.insert(sets.end(), {what, {}});
    set->second.push_back(static_cast<int>(rank));
  }
  std::string text;
  for (const auto& [what, ranks] : sets) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", format_ranks(ranks), what);
  }
  return text;
}

/// Ranks that do not have what most have.
std::vector<int> odd_ones(const std::vector<RankReport>& reports) {
  std::map<int, int> counts;
  for (const RankReport& report : reports) ++counts[report.nccl_version];
  const auto most =
      std::max_element(counts.begin(), counts.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  std::vector<int> odd;
  for (std::size_t rank = 0; rank < reports.size(); ++rank) {
    if (reports[rank].nccl_version != most->first) odd.push_back(static_cast<int>(rank));
  }
  return odd;
}

std::string versions_of(const RankReport& report) {
  return fmt::format("NCCL {} on {}, its driver for CUDA {}", version_text(report.nccl_version), report.host,
                     cuda::version_text(report.driver_version));
}

/// Whether NCCL itself lets two ranks have one GPU. Up to 2.29 it does if they seem to be on different hosts
/// (init.cc, "Duplicate GPU detected").
bool share_a_gpu(const RankReport& one, const RankReport& other) {
  const bool apart = !one.host_id.empty() && !other.host_id.empty() && one.host_id != other.host_id;
  return (one.may_share && other.may_share) || (apart && one.nccl_version < kSharedGpu);
}

}  // namespace

std::vector<int> bootstrap_roots(int size, bool several) {
  std::vector<int> roots;
  for (int rank = 0; rank < size && (several || rank == 0); rank += kRanksPerRoot) roots.push_back(rank);
  return roots;
}

bool adds_float8(const std::vector<RankReport>& reports) {
  constexpr int kOldestVersion8 = version_code(2, 24, 3);
  constexpr int kSm90 = 90;  // NCCL refuses it on others: "FP8 reduction support begins with sm90 capable devices"
  return std::all_of(reports.begin(), reports.end(), [&](const RankReport& report) {
    return report.nccl_version >= kOldestVersion8 && report.compute_capability >= kSm90;
  });
}

void check_reports(const std::vector<RankReport>& reports, const std::string& group, int rank) {
  const auto differ = [&](auto member) {
    return std::any_of(reports.begin(), reports.end(),
                       [&](const RankReport& report) { return report.*member != reports.front().*member; });
  };
  const std::string attempted = fmt::format("preparing NCCL for group '{}'", group);
  if (differ(&RankReport::nccl_version)) {
    throw Error{{.code = ErrorCode::mismatch,
                 .attempted = attempted,
                 .cause = "the ranks have different versions of NCCL; " + who_has_what(reports, versions_of),
                 .ranks = odd_ones(reports),
                 .hint = "give all ranks one NCCL, with DDP_NCCL_LIBRARY or the same environment on all hosts"}};
  }
  if (rank == 0 && differ(&RankReport::driver_version)) {
    base::log(base::LogLevel::warning, "group '{}': the ranks have different drivers; {}", group,
              who_has_what(reports, versions_of));
  }
  std::map<std::string, int> users;
  for (std::size_t other = 0; other < reports.size(); ++other) {
    const RankReport& report = reports[other];
    const auto [user, first] = users.emplace(report.device, static_cast<int>(other));
    if (first || share_a_gpu(report, reports[static_cast<std::size_t>(user->second)])) continue;
    throw Error{{.code = ErrorCode::conflict,
                 .attempted = attempted,
                 .cause = fmt::format("{} and {} have the same GPU, {}", name_of(reports, user->second),
                                      name_of(reports, static_cast<int>(other)), report.device),
                 .ranks = {user->second, static_cast<int>(other)},
                 .hint = "start one rank for each GPU: ddprun --gpus, srun --ddp-gpus, or CUDA_VISIBLE_DEVICES"}};
  }
}

}  // namespace ddp::collectives::nccl
