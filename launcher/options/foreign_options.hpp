// Options of other launchers, for which ddprun has its own.
#pragma once

#include <string>
#include <string_view>

namespace ddp::launcher {

/// What to write instead of @p name ("-np", "--num-processes"), which ddprun does not know; empty: no other launcher
/// has it either.
std::string hint_for_foreign_option(std::string_view name);

}  // namespace ddp::launcher
