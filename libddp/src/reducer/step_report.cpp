#include "reducer/step_report.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ddp/error.hpp>

#include "collectives/all_gather_bytes.hpp"
#include "reducer/answers.hpp"

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
    if (answer == kGivenUp)
      hint = "look at what failed there; a step that fails is tried again, or left out, on all ranks";
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

}  // namespace ddp::reducer
