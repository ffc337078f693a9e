// What a Reducer's options mean, and whether they make sense.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include <ddp/error.hpp>
#include <ddp/reducer.hpp>

namespace ddp::reducer {

/// What has to be equal on all ranks, for messages, too.
std::string describe(const ReducerOptions& options);
/// Throws Error(invalid_argument).
void check_options(const ReducerOptions& options, const std::vector<Parameter>& parameters);
/// With the ready_order of a recorded_order.
ReducerOptions with_recorded_order(ReducerOptions options);
/// Whether a static graph's marks need not be counted in its first step.
bool knows_counts(const ReducerOptions& options);

/// The element type in which gradients of type @p gradients are exchanged.
DType exchanged_as(DType gradients, const ReducerOptions& options);
/// Whether a CUDA device can divide numbers of this type while it copies them.
bool divides_on_device(DType type);
/// For the first, second, ... bucket of each element type; the last one repeats.
std::vector<std::size_t> bucket_limits(const ReducerOptions& options);
/// Whether buckets follow the order of the first step's gradients.
bool rebuilds(const ReducerOptions& options);
/// What to do about a parameter that was not marked ready.
std::string missing_hint(const ReducerOptions& options);

// ---- Verifies at construction that all ranks have the same parameters and options, and nothing that cannot be
// averaged.

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
