// Secrets within a text: in URLs, headers, options, JSON, keys in PEM, and tokens that their beginning gives away.
#pragma once

#include <string>
#include <string_view>

namespace ddp::diagnostics {

inline constexpr const char* kHiddenValue = "(hidden)";

/// The text with kHiddenValue in place of each secret that it shows by its form.
std::string without_secrets(std::string_view text);

}  // namespace ddp::diagnostics
