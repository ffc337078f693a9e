// Verifies at construction that all ranks have the same parameters, and gives them rank 0's values.
#pragma once

#include <vector>

#include <ddp/reducer.hpp>

namespace ddp::reducer {

/// Collective. Throws Error(mismatch), the same on every rank and naming the first parameter that differs, when ranks
/// have different numbers of parameters, or a parameter of different name, shape or element type. One all_gather of 8
/// bytes; descriptions are exchanged only when they differ.
void verify_parameters(ProcessGroup& group, const std::vector<Parameter>& parameters);

/// Collective. Copies rank 0's values to all ranks, in messages of up to about 25 MiB.
void broadcast_parameters(ProcessGroup& group, const std::vector<Parameter>& parameters);

}  // namespace ddp::reducer
