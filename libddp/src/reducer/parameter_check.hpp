// Verifies at construction that all ranks have the same parameters and options.
#pragma once

#include <string>
#include <vector>

#include <ddp/reducer.hpp>

namespace ddp::reducer {

/// Collective. Throws Error(mismatch), the same on every rank and naming the first parameter that differs, when ranks
/// have different numbers of parameters, or a parameter of different name, shape, element type or strides, or only some
/// have a gradient for it; or when @p options differ, a text that ranks compare. One all_gather of 8 bytes;
/// descriptions are exchanged only when they differ.
void verify_parameters(ProcessGroup& group, const std::vector<Parameter>& parameters, const std::string& options);

}  // namespace ddp::reducer
