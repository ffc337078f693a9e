#include "outcome/group_verdict.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "outcome/error_file.hpp"

namespace ddp::launcher {
namespace {

// libddp/src/collectives/failure_verdict.cpp, whose sentences follow the ranks that they are about.
constexpr std::string_view kDifferent = "the ranks called different things";
constexpr std::array<std::string_view, 7> kSentences{" died or left the group",
                                                     " left the group and ha",
                                                     " gave no sign of life",
                                                     " did not call it before the deadline",
                                                     " is alive but sent rank ",
                                                     " is alive but did not take it from rank ",
                                                     " too slow to answer before the deadline"};
// A list of more is no list.
constexpr std::size_t kMostRanks = 1'000'000;

/// "1, 3-5" -> 1, 3, 4, 5; nothing where @p list is something else.
std::optional<std::vector<int>> parse_rank_text(std::string_view list) {
  std::vector<int> ranks;
  const auto number = [&list](int& value) {
    const auto [end, error] = std::from_chars(list.data(), list.data() + list.size(), value);
    if (error != std::errc{} || value < 0 || value > static_cast<int>(kMostRanks)) return false;
    list.remove_prefix(static_cast<std::size_t>(end - list.data()));
    return true;
  };
  do {
    int first = 0;
    if (!number(first)) return std::nullopt;
    int last = first;
    if (list.starts_with('-')) {
      list.remove_prefix(1);
      if (!number(last) || last < first) return std::nullopt;
    }
    for (int rank = first; rank <= last && ranks.size() <= kMostRanks; ++rank) ranks.push_back(rank);
    if (list.empty()) return ranks;
    if (!list.starts_with(", ")) return std::nullopt;
    list.remove_prefix(2);
  } while (ranks.size() <= kMostRanks);
  return std::nullopt;
}

/// The list of "rank 3" or "ranks 1, 3-5" at the end of @p text.
std::vector<int> ranks_before(std::string_view text) {
  if (text.ends_with(" is")) text.remove_suffix(3);
  if (text.ends_with(" are")) text.remove_suffix(4);
  const std::size_t begin = text.find_last_not_of("0123456789, -");
  if (begin == std::string_view::npos || begin + 2 > text.size()) return {};
  const std::string_view word = text.substr(0, begin + 1);
  if (!word.ends_with("rank") && !word.ends_with("ranks")) return {};
  return parse_rank_text(text.substr(begin + 2)).value_or(std::vector<int>{});
}

/// "...; ranks 0, 1, 3: all_reduce; rank 2: broadcast": those that differ from more than half.
std::vector<int> minority(std::string_view text) {
  std::vector<std::vector<int>> groups;
  std::size_t all = 0;
  for (std::size_t at = text.find("; rank"); at != std::string_view::npos; at = text.find("; rank", at + 1)) {
    const std::size_t colon = text.find(": ", at);
    if (colon == std::string_view::npos) break;
    std::vector<int> ranks = ranks_before(text.substr(at, colon - at));
    if (ranks.empty()) continue;
    all += ranks.size();
    groups.push_back(std::move(ranks));
  }
  std::vector<int> differ;
  for (const std::vector<int>& group : groups) {
    if (2 * group.size() < all) differ.insert(differ.end(), group.begin(), group.end());
  }
  if (differ.size() == all) differ.clear();  // there is no majority
  std::sort(differ.begin(), differ.end());
  return differ;
}

std::vector<int> blamed_in_line(std::string_view line) {
  if (const auto at = line.find(kDifferent); at != std::string_view::npos) return minority(line.substr(at));
  std::vector<int> ranks;
  for (const std::string_view sentence : kSentences) {
    const std::size_t at = line.find(sentence);
    if (at == std::string_view::npos) continue;
    const std::vector<int> named = ranks_before(line.substr(0, at));
    ranks.insert(ranks.end(), named.begin(), named.end());
  }
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

std::string last_words(const RankTraces& traces) {
  if (traces.error_content.empty()) return traces.stderr_tail;
  const WorkerError error = parse_error_file(traces.error_content);
  return error.traceback + "\n" + error.message;
}

}  // namespace

std::vector<int> blamed_ranks(std::string_view text) {
  while (!text.empty()) {
    const std::size_t newline = text.rfind('\n');
    const std::string_view line = newline == std::string_view::npos ? text : text.substr(newline + 1);
    if (std::vector<int> ranks = blamed_in_line(line); !ranks.empty()) return ranks;
    text = newline == std::string_view::npos ? std::string_view{} : text.substr(0, newline);
  }
  return {};
}

void apply_group_verdict(JobOutcome& outcome) {
  if (outcome.root_cause() != RootCause::rank || outcome.failures.front().abort) return;
  std::map<std::vector<int>, std::vector<int>> reporters;  // by whom they name
  for (const RankFailure& failure : outcome.failures) {
    std::vector<int> ranks = blamed_ranks(last_words(failure.traces));
    if (!ranks.empty()) reporters[std::move(ranks)].push_back(failure.name.rank);
  }
  if (reporters.empty()) return;
  const auto most = std::max_element(reporters.begin(), reporters.end(), [](const auto& one, const auto& other) {
    return one.second.size() < other.second.size();
  });
  const auto is_named = [&](int rank) { return std::binary_search(most->first.begin(), most->first.end(), rank); };
  if (is_named(outcome.failures.front().name.rank)) return;
  std::sort(most->second.begin(), most->second.end());
  outcome.verdict = GroupVerdict{.ranks = most->first, .reporters = most->second, .has_failed = false};
  const auto named = std::find_if(outcome.failures.begin(), outcome.failures.end(),
                                  [&](const RankFailure& failure) { return is_named(failure.name.rank); });
  if (named == outcome.failures.end()) return;
  outcome.verdict->has_failed = true;
  std::rotate(outcome.failures.begin(), named, named + 1);
}

}  // namespace ddp::launcher
