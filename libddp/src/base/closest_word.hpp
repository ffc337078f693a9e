// Suggests the word that a typing mistake was meant to be.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace ddp::base {

/// The candidate that @p typed becomes with the fewest insertions, deletions and replacements of single characters, if
/// these are at most @p most; empty if there is none. The first of several equally close ones.
std::string closest_word(std::string_view typed, std::span<const std::string> candidates, std::size_t most);

}  // namespace ddp::base
