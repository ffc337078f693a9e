// Finds what the user probably meant to type.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace ddp::launcher {

/// The candidate that needs the fewest single-character changes to become @p typed; the first one of several; empty if
/// none is near (more changes than half of the typed word's length, and at least three).
std::string closest_word(std::string_view typed, std::span<const std::string> candidates);

}  // namespace ddp::launcher
