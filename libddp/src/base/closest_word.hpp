// Words that users write: the closest known one for a typo, one of a fixed choice, the name of an option.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ddp/error.hpp>

namespace ddp::base {

// Suggests the word that a typing mistake was meant to be.

/// As many changes still look like a typing mistake.
inline constexpr std::size_t kTypingMistake = 2;

/// The candidate that @p typed becomes with the fewest insertions, deletions and replacements of single characters, if
/// these are at most @p most; empty if there is none. The first of several equally close ones.
std::string closest_word(std::string_view typed, std::span<const std::string> candidates, std::size_t most);

/// How many changes still look like a mistake in a word of so many letters: a third of them, at most @p most; more make
/// another word of it.
std::size_t plausible_changes(std::size_t letters, std::size_t most);

// The error of a word that is not one of those that are accepted.

/// Error(invalid_argument): "'nuam' is not one of numa, core, socket, none; did you mean 'numa'?"
Error unknown_word(std::string attempted, std::string_view word, std::span<const std::string> accepted);

// Which option a word of a command line means: the rules of getopt_long and of Python's argparse for abbreviations.

/// The names ("--nproc") that @p typed may stand for: itself, if it is one; else those that begin with it.
std::vector<std::string> options_meant_by(std::string_view typed, std::span<const std::string> names);

/// The name that @p typed, which begins none, probably is with a typing mistake; empty if none is close. It may be
/// abbreviated, too: if no whole name is close, it is compared with the beginnings of names.
std::string closest_option(const std::string& typed, std::span<const std::string> names);

}  // namespace ddp::base
