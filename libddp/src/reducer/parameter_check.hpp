// Verifies at construction that all ranks have the same parameters and options, and nothing that cannot be averaged.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <ddp/error.hpp>
#include <ddp/reducer.hpp>

namespace ddp::reducer {

/// Collective. Throws Error(mismatch), the same on every rank and naming the first parameter that differs, when ranks
/// have different numbers of parameters, or a parameter of different name, shape, element type or strides, or only some
/// have a gradient for it; or when @p options or @p buffers differ, texts that ranks compare. One all_gather of 8
/// bytes; descriptions are exchanged only when they differ.
/// @param fault what is wrong on this rank; nothing: nothing is. If any rank has one, all throw it, naming those that
/// do.
void verify_parameters(ProcessGroup& group, const std::vector<Parameter>& parameters, const std::string& options,
                       const std::vector<std::string>& buffers = {}, const std::optional<Error>& fault = {});

/// "'fc.weight' float32[4, 2]", for a RecordedOrder.
std::vector<std::string> recorded_names(const std::vector<Parameter>& parameters);

}  // namespace ddp::reducer
