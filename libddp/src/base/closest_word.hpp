// Suggests the word that a typing mistake was meant to be.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace ddp::base {

/// As many changes still look like a typing mistake.
inline constexpr std::size_t kTypingMistake = 2;

/// The candidate that @p typed becomes with the fewest insertions, deletions and replacements of single characters, if
/// these are at most @p most; empty if there is none. The first of several equally close ones.
std::string closest_word(std::string_view typed, std::span<const std::string> candidates, std::size_t most);

/// How many changes still look like a mistake in a word of so many letters: a third of them, at most @p most; more make
/// another word of it.
std::size_t plausible_changes(std::size_t letters, std::size_t most);

}  // namespace ddp::base
