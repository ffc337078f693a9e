#include "reducer/step_report.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/error.hpp>

#include "base/byte_stream.hpp"
#include "collectives/group_calls.hpp"
#include "collectives/group_engine.hpp"

namespace ddp::reducer {

void StepReport::send(ProcessGroup& group, bool misses_gradients, std::span<const std::uint8_t> used) {
  if (!sums_) sums_ = std::make_shared<std::vector<std::int32_t>>();
  sums_->assign(1, misses_gradients ? 1 : 0);
  sums_->insert(sums_->end(), used.begin(), used.end());
  work_ = group.all_reduce(*sums_, ReduceOp::sum, {{}, sums_});
}

void StepReport::wait() {
  try {
    work_->wait_watched();
  } catch (...) {
    sums_ = nullptr;  // the exchange may go on
    throw;
  }
}

std::string describe_missing(const std::vector<Parameter>& parameters, std::span<const std::size_t> missing) {
  if (missing.empty()) return {};
  constexpr std::size_t kNamed = 20;
  std::vector<std::string> names;
  for (const std::size_t index : missing.first(std::min(missing.size(), kNamed))) {
    names.push_back(fmt::format("{} '{}'", index, parameters[index].name));
  }
  std::string text = fmt::format("{} of {} parameters were not marked ready: {}", missing.size(), parameters.size(),
                                 fmt::join(names, ", "));
  if (missing.size() > kNamed) text += fmt::format(" and {} more", missing.size() - kNamed);
  return text;
}

void throw_missing(ProcessGroup& group, const std::string& description, std::string hint) {
  std::vector<std::string> by_rank{description};
  if (group.size() > 1) {
    by_rank.clear();
    const auto own = std::as_bytes(std::span{description});
    for (const Bytes& bytes : collectives::all_gather_bytes(group, own)) {
      by_rank.emplace_back(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
  }
  std::string cause;
  std::vector<int> guilty;
  for (const auto& [answer, ranks] : group_answers(group, by_rank)) {
    if (answer.empty()) continue;
    if (answer == kGivenUp) hint = "look at what failed there; on all ranks, retry a failed step or skip it";
    cause += fmt::format("{}on {}, {}", cause.empty() ? "" : "; ", format_ranks(ranks), answer);
    guilty.insert(guilty.end(), ranks.begin(), ranks.end());
  }
  std::ranges::sort(guilty);
  throw Error{{.code = ErrorCode::invalid_argument,
               .attempted = "finalizing a backward pass",
               .cause = std::move(cause),
               .ranks = std::move(guilty),
               .hint = std::move(hint)}};
}

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

void agree_on_unused(ProcessGroup& group, const std::vector<Parameter>& parameters,
                     std::span<const std::size_t> unused) {
  std::vector<std::uint8_t> flags(parameters.size());
  for (const std::size_t index : unused) flags[index] = 1;
  const auto own = std::as_bytes(std::span{flags});
  std::vector<std::int64_t> hash{static_cast<std::int64_t>(base::Fnv1a().add(own).value())};
  std::vector<std::int64_t> hashes(static_cast<std::size_t>(group.size()));
  group.all_gather(hash, hashes).wait();
  if (std::ranges::all_of(hashes, [&](std::int64_t other) { return other == hashes[0]; })) return;

  const std::vector<Bytes> by_rank = collectives::all_gather_bytes(group, own);
  std::string cause = "the ranks give different parameters as unused";
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    std::vector<std::string> answers;
    for (const Bytes& bytes : by_rank) answers.emplace_back(bytes[i] == std::byte{0} ? "used" : "unused");
    const auto groups = group_answers(group, answers);
    if (groups.size() == 1) continue;
    cause = fmt::format("parameter {} '{}' is {} on {}, {} on {}", i, parameters[i].name, groups[0].first,
                        format_ranks(groups[0].second), groups[1].first, format_ranks(groups[1].second));
    break;
  }
  throw Error{{.code = ErrorCode::mismatch,
               .attempted = "starting a backward pass",
               .cause = std::move(cause),
               .hint = "with skip_all_reduce_unused all ranks must give the same; leave it off if they differ"}};
}

void end_step_everywhere(ProcessGroup& group, const CommHook* hook, const std::exception& error) {
  if (group.size() == 1) return;
  const int own = group.global_ranks()[static_cast<std::size_t>(group.rank())];
  collectives::GroupEngine::of(group).end_group(
      Error{{.code = ErrorCode::aborted,
             .attempted = hook != nullptr ? fmt::format("averaging gradients by the hook '{}'", hook->name())
                                          : "moving gradients on a device",
             .cause = fmt::format("it failed on rank {}: {}", own, error.what()),
             .ranks = {own},
             .hint = "look at that rank; then change the group, or make a new one"}});
}

}  // namespace ddp::reducer
