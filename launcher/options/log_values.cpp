// Strict reading of stream numbers, rank lists and filter texts.
#include "options/log_values.hpp"

#include <fmt/format.h>

#include "options/option_values.hpp"

namespace ddp::launcher {
namespace {

constexpr const char* kStreamsHint =
    "give 0 (none), 1 (standard output), 2 (standard error) or 3 (both), or LOCAL_RANK:NUMBER,... as in 0:3,1:2";

Streams read_streams(const std::string& option, const std::string& text, std::string_view digit) {
  if (digit.size() != 1 || digit[0] < '0' || digit[0] > '3')
    reject_value(option, text, "does not select streams", kStreamsHint);
  return static_cast<Streams>(digit[0] - '0');
}

/// Digits only, below @p end; -1 for anything else.
int read_rank(std::string_view text, int end) {
  if (text.empty() || text.find_first_not_of("0123456789") != std::string_view::npos) return -1;
  int value = 0;
  for (const char digit : text) {
    value = value * 10 + (digit - '0');
    if (value >= end) return -1;
  }
  return value;
}

}  // namespace

StreamSelection parse_streams(const std::string& option, const std::string& text) {
  StreamSelection selection;
  if (text.find(':') == std::string::npos) {
    selection.all = read_streams(option, text, text);
    return selection;
  }
  for (const std::string_view part : parts_of(text, ',')) {
    const auto colon = part.find(':');
    const int rank = read_rank(part.substr(0, colon), kMaxRanksPerNode);
    if (colon == std::string_view::npos || rank < 0)
      reject_value(option, text, "does not select streams", kStreamsHint);
    selection.by_local_rank[rank] = read_streams(option, text, part.substr(colon + 1));
  }
  return selection;
}

std::set<int> parse_rank_list(const std::string& option, const std::string& text, int end) {
  const auto allowed = [end] {
    return fmt::format("give ranks from 0 to {} and ranges of them, as in 0,8-15", end - 1);
  };
  std::set<int> ranks;
  for (const std::string_view part : parts_of(text, ',')) {
    const auto dash = part.find('-');
    const int first = read_rank(part.substr(0, dash), end);
    const int last = dash == std::string_view::npos ? first : read_rank(part.substr(dash + 1), end);
    if (first < 0 || last < 0) reject_value(option, text, "is not a list of ranks", allowed());
    if (first > last)
      reject_value(option, text, "has a range that ends before it begins",
                   fmt::format("did you mean {}-{}?", last, first));
    if (last - first >= kMaxListedRanks - static_cast<int>(ranks.size()))
      reject_value(option, text, "names too many ranks", fmt::format("name {} at most", kMaxListedRanks - 1));
    for (int rank = first; rank <= last; ++rank) ranks.insert(ranks.end(), rank);
  }
  return ranks;
}

std::vector<std::string> parse_filters(const std::string& text) {
  std::vector<std::string> filters;
  std::string filter;
  const auto finish = [&] {
    if (!filter.empty()) filters.push_back(std::move(filter));
    filter.clear();
  };
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (text[at] != ',') {
      filter += text[at];
    } else if (at + 1 < text.size() && text[at + 1] == ',') {
      filter += ',';
      ++at;
    } else {
      finish();
    }
  }
  finish();
  return filters;
}

}  // namespace ddp::launcher
