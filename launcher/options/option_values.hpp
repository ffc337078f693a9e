// Strict reading of option values: the whole text must be a value of the right kind and in range.
#pragma once

#include <chrono>
#include <string>

namespace ddp::launcher {

/// A whole number from 1 to @p highest. Throws ExitError(kExitUsage) that names @p option, the value and what is
/// allowed.
int parse_count(const std::string& option, const std::string& text, int highest);

/// A decimal number of seconds from 0 to 86400 (one day), for example "2" or "0.5". Throws like parse_count.
std::chrono::milliseconds parse_seconds(const std::string& option, const std::string& text);

}  // namespace ddp::launcher
