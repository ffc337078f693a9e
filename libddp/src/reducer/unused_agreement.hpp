// Whether all ranks leave the same parameters unused.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include <ddp/reducer.hpp>

namespace ddp::reducer {

/// Collective: one all_gather of 8 bytes. Throws Error(mismatch), the same on all ranks, naming the first parameter
/// that only some ranks gave as unused.
void agree_on_unused(ProcessGroup& group, const std::vector<Parameter>& parameters,
                     std::span<const std::size_t> unused);

}  // namespace ddp::reducer
