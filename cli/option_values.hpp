// Strict reading of option values: the whole text must be a value of the right kind and in range.
#pragma once

#include <chrono>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ddp/error.hpp>

#include "cli/exit_error.hpp"

namespace ddp::cli {

/// One day: the longest wait of our own programs.
inline constexpr double kOneDay = 86'400;
/// A year, for what Slurm limits by days.
inline constexpr double kOneYear = 365 * kOneDay;

/// @p text for a message of one line: control characters are shown as '?', what looks like nothing or a blank by its
/// name
/// ("\r", "\u00a0").
std::string printable(std::string_view text);

/// The error of an option's value that was refused with @p error.
UsageError usage_error(const std::string& option, const Error& error);

/// Throws UsageError: "reading <option>: '<text>' <why>; <allowed>". @p option is its name, or that of the
/// environment variable which gave the value.
[[noreturn]] void reject_value(const std::string& option, std::string_view text, std::string_view why,
                               std::string allowed);

/// Throws UsageError for words that are not understood.
[[noreturn]] void reject_words(const std::string& cause, const std::string& hint);

/// Throws UsageError for contradictory options.
[[noreturn]] void reject_combination(std::string cause, std::string hint);

/// A whole number from @p lowest to @p highest. Throws UsageError that names @p option, the value and what
/// is allowed.
int parse_whole(const std::string& option, std::string_view text, int lowest, int highest);

/// A whole number from 1 to @p highest.
int parse_count(const std::string& option, const std::string& text, int highest);

/// A decimal number of seconds from 0 to @p highest, for example "2" or "0.5". Throws like parse_whole.
std::chrono::milliseconds parse_seconds(const std::string& option, std::string_view text, double highest = kOneDay);

/// A number of seconds that is at least a millisecond.
std::chrono::milliseconds parse_positive_seconds(const std::string& option, std::string_view text, double highest);

/// The one of @p words that @p text is; lives as long as they do. Throws UsageError that lists them.
const std::string& parse_choice(const std::string& option, const std::string& text, std::span<const std::string> words);

/// @p text without blanks at its ends.
std::string_view trimmed(std::string_view text);

/// The parts of @p text between the separators, without blanks at their ends. One part, empty, for an empty text.
std::vector<std::string_view> parts_of(std::string_view text, char separator);

}  // namespace ddp::cli
