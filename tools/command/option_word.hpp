// The option that a word of a tool's command line means.
#pragma once

#include <span>
#include <string>

namespace ddp::tools {

/// @p typed without its value, in full and with dashes for underscores. Any unambiguous beginning of a name means it,
/// as in ddprun. Throws UsageError for unknown (with the closest name, else @p hint) and ambiguous options.
std::string full_option(std::string typed, std::span<const std::string> names, const std::string& hint);

}  // namespace ddp::tools
