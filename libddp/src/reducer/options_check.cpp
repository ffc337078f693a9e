#include "reducer/options_check.hpp"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/byte_stream.hpp"
#include "base/errors.hpp"
#include "reducer/parameter_check.hpp"

namespace ddp::reducer {

namespace {

constexpr auto kMakingReducer = "making a Reducer";

void check_recorded(const ReducerOptions& options, const std::vector<Parameter>& parameters) {
  const auto refuse = [](std::string cause) {
    base::throw_invalid_argument(kMakingReducer, std::move(cause), "give the order that this model has recorded");
  };
  const RecordedOrder& recorded = *options.recorded_order;
  const std::vector<std::string> names = recorded_names(parameters);
  if (recorded.parameters != names) {
    std::size_t i = 0;
    while (i < names.size() && i < recorded.parameters.size() && names[i] == recorded.parameters[i]) ++i;
    const auto name = [i](const std::vector<std::string>& list) { return i < list.size() ? list[i] : "missing"; };
    refuse(fmt::format("recorded_order is another model's: its parameter {} is {}, here it is {}", i,
                       name(recorded.parameters), name(names)));
  }
  if (options.ready_order != recorded.order) refuse("both ready_order and recorded_order are given");
  if (!recorded.counts.empty() && recorded.counts.size() != parameters.size()) {
    refuse(fmt::format("recorded_order has counts of {} parameters, not of {}", recorded.counts.size(),
                       parameters.size()));
  }
}

bool can_be_cast(DType type) { return type == DType::float32 || type == DType::float16 || type == DType::bfloat16; }

}  // namespace

std::string describe(const ReducerOptions& options) {
  std::string text = fmt::format("bucket limits [{}]", fmt::join(bucket_limits(options), ", "));
  const auto add = [&](bool set, const char* name) {
    if (set) text += fmt::format(", {}", name);
  };
  add(rebuilds(options), "rebuild_buckets");
  add(options.broadcast_parameters, "broadcast_parameters");
  add(options.find_unused_parameters, "find_unused_parameters");
  add(options.static_graph, "static_graph");
  add(options.skip_all_reduce_unused, "skip_all_reduce_unused");
  if (!options.ready_order.empty()) {
    const auto bytes = std::as_bytes(std::span{options.ready_order});
    text += fmt::format(", ready_order {:016x}", base::Fnv1a().add(bytes).value());
  }
  add(knows_counts(options), "counts of marks");
  if (options.log.find_straggler) text += fmt::format(", stragglers of each {}th step", options.log.sample_rate);
  if (!options.delayed.empty()) text += fmt::format(", delayed [{}]", fmt::join(options.delayed, ", "));
  if (options.delayed_behind) text += fmt::format(", delayed_behind {}", *options.delayed_behind);
  if (options.reduce_dtype) text += fmt::format(", reduced in {}", to_string(*options.reduce_dtype));
  if (options.comm_hook) text += fmt::format(", hook '{}'", options.comm_hook->name());
  return text;
}

void check_options(const ReducerOptions& options, const std::vector<Parameter>& parameters) {
  if (options.skip_all_reduce_unused && !options.find_unused_parameters) {
    base::throw_invalid_argument(kMakingReducer, "skip_all_reduce_unused is set without find_unused_parameters",
                                 "set both");
  }
  if (options.find_unused_parameters && options.comm_hook && options.comm_hook->needs_all_parameters()) {
    base::throw_invalid_argument(
        kMakingReducer, fmt::format("the hook '{}' is set with find_unused_parameters", options.comm_hook->name()),
        "leave one of them off: what the hook makes of parameters that no rank uses would be lost");
  }
  if (options.reduce_dtype && !can_be_cast(*options.reduce_dtype)) {
    base::throw_invalid_argument(kMakingReducer,
                                 fmt::format("{} is no type to reduce in", to_string(*options.reduce_dtype)),
                                 "give float32, float16 or bfloat16 as reduce_dtype");
  }
  if (options.log.sample_rate == 0) {
    base::throw_invalid_argument(kMakingReducer, "the log's sample_rate is 0", "give 1 or more");
  }
  for (const std::size_t index : options.delayed) {
    if (index < parameters.size()) continue;
    base::throw_invalid_argument(kMakingReducer,
                                 fmt::format("delayed names parameter {} of {}", index, parameters.size()),
                                 "give positions in the list of parameters");
  }
  if (options.delayed_behind && *options.delayed_behind >= parameters.size()) {
    base::throw_invalid_argument(
        kMakingReducer,
        fmt::format("delayed_behind names parameter {} of {}", *options.delayed_behind, parameters.size()),
        "give a position in the list of parameters");
  }
  if (options.recorded_order) check_recorded(options, parameters);
  for (const std::size_t index : options.ready_order) {
    if (index < parameters.size()) continue;
    base::throw_invalid_argument(kMakingReducer,
                                 fmt::format("ready_order names parameter {} of {}", index, parameters.size()),
                                 "give the order of the same model");
  }
}

ReducerOptions with_recorded_order(ReducerOptions options) {
  if (options.recorded_order && options.ready_order.empty()) options.ready_order = options.recorded_order->order;
  return options;
}

bool knows_counts(const ReducerOptions& options) {
  return options.static_graph && options.recorded_order && !options.recorded_order->counts.empty();
}

DType exchanged_as(DType gradients, const ReducerOptions& options) {
  return options.reduce_dtype && can_be_cast(gradients) ? *options.reduce_dtype : gradients;
}

bool divides_on_device(DType type) {
  const DType component = component_of(type);
  return can_be_cast(component) || component == DType::float64;
}

std::vector<std::size_t> bucket_limits(const ReducerOptions& options) {
  if (!options.bucket_caps_bytes.empty()) return options.bucket_caps_bytes;
  if (options.bucket_cap_bytes) return {*options.bucket_cap_bytes};
  return {options.first_bucket_bytes, 25 * MiB};
}

bool rebuilds(const ReducerOptions& options) {
  return options.rebuild_buckets && options.ready_order.empty() &&
         (options.static_graph || !options.find_unused_parameters);
}

std::string missing_hint(const ReducerOptions& options) {
  if (options.static_graph) {
    return "with static_graph each step has to mark what the first one marked, as often as it did";
  }
  return "every parameter needs a gradient in every step: set find_unused_parameters if some have none, or give those "
         "that never have one requires_gradient = false";
}

}  // namespace ddp::reducer
