// Places in tables as numbers that may be negative for "none", as placement keeps them.
#pragma once

#include <cstddef>

namespace ddp::topology {

/// @p index as standard containers want it.
constexpr std::size_t at(int index) noexcept { return static_cast<std::size_t>(index); }

}  // namespace ddp::topology
