// Options on output: which streams of which ranks go where (-r, -t and the filters).
#pragma once

#include <set>
#include <string>
#include <vector>

#include "options/launch_options.hpp"

namespace ddp::launcher {

/// The most ranks that one list may name: a list is for the few whose output matters.
inline constexpr int kMaxListedRanks = 1 << 20;

/// torchrun's grammar, with local ranks of any number of digits: "0" to "3" for all, or "0:1,12:3". A rank that is
/// named twice gets what was said last. Throws ExitError(kExitUsage) that names @p option.
StreamSelection parse_streams(const std::string& option, const std::string& text);

/// "0,8-15": numbers and ranges, each below @p end. Throws like parse_streams; also for an empty text.
std::set<int> parse_rank_list(const std::string& option, const std::string& text, int end);

/// Texts between commas; ",," stands for a comma. Empty ones, which would match every line, are left out.
std::vector<std::string> parse_filters(const std::string& text);

}  // namespace ddp::launcher
