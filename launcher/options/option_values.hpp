// Strict reading of option values: the whole text must be a value of the right kind and in range.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include <ddp/error.hpp>

#include "report/exit_error.hpp"

namespace ddp::launcher {

/// The error of an option's value that was refused with @p error.
ExitError usage_error(const std::string& option, const Error& error);

/// A whole number from 1 to @p highest. Throws ExitError(kExitUsage) that names @p option, the value and what is
/// allowed.
int parse_count(const std::string& option, const std::string& text, int highest);

/// A decimal number of seconds from 0 to 86400 (one day), for example "2" or "0.5". Throws like parse_count.
std::chrono::milliseconds parse_seconds(const std::string& option, const std::string& text);

/// What @p parse makes of a word. Its Error(invalid_argument), which lists the accepted words, becomes
/// ExitError(kExitUsage) that names @p option.
template <class Value>
Value parse_word(const std::string& option, const std::string& text, Value (*parse)(std::string_view)) {
  try {
    return parse(text);
  } catch (const Error& error) {
    throw usage_error(option, error);
  }
}

}  // namespace ddp::launcher
