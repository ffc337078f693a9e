// What a Reducer's options mean, and whether they make sense.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

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
/// Of the first, second, ... bucket of each element type; the last one repeats.
std::vector<std::size_t> bucket_limits(const ReducerOptions& options);
/// Whether buckets follow the order of the first step's gradients.
bool rebuilds(const ReducerOptions& options);
/// What to do about a parameter that was not marked ready.
std::string missing_hint(const ReducerOptions& options);

}  // namespace ddp::reducer
