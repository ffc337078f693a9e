// Files of backend plugins, for those who must not load them: launchers say that there is no such backend before a rank
// starts.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/env_table.hpp"

namespace ddp::base {

/// "libddp_NAME.so"
std::string backend_file(std::string_view name);

/// For an error about a backend that cannot be found: what was perhaps meant, what there is, and what to do.
std::string missing_backend_hint(std::string_view name);

/// Looks for the plugins that @p word names as make_process_group does: in DDP_BACKEND_PATH, beside libddp.so, where
/// the loader looks. Libddp's own are not looked for: a program may bring another libddp.so, with its plugins.
/// @param word empty: nothing is looked for. @param folders where libddp.so may lie. Throws Error(unavailable) if a
/// plugin is in none of them, Error(invalid_argument) if @p word names no backends.
void require_backend_files(const std::string& attempted, std::string_view word, const Environment& environment,
                           std::span<const std::string> folders);

}  // namespace ddp::base
