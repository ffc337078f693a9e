#include "reducer/options_check.hpp"

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/byte_stream.hpp"
#include "base/errors.hpp"
#include "base/message.hpp"
#include "collectives/group_calls.hpp"
#include "reducer/step_report.hpp"

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
  add(options.write_unused, "write_unused");
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
  const bool loses = options.find_unused_parameters && (!options.write_unused || options.skip_all_reduce_unused);
  if (loses && options.comm_hook && options.comm_hook->needs_all_parameters()) {
    base::throw_invalid_argument(
        kMakingReducer, fmt::format("the hook '{}' is set with find_unused_parameters", options.comm_hook->name()),
        "leave one off, or set write_unused without skip_all_reduce_unused: what the hook makes of parameters that no "
        "rank uses would be lost");
  }
  if (options.reduce_dtype && !can_be_cast(*options.reduce_dtype)) {
    base::throw_invalid_argument(kMakingReducer,
                                 fmt::format("{} is not a type to reduce in", to_string(*options.reduce_dtype)),
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

namespace {

std::string describe(const Parameter& parameter) {
  std::string text = fmt::format("'{}' {}", parameter.name, parameter.value.description());
  const std::string gradient = parameter.gradient.description();
  if (!parameter.requires_gradient) {
    text += " without a gradient";
  } else if (parameter.sparse_gradient) {
    text += " with a sparse gradient";
  } else if (parameter.gradient.data() != nullptr && gradient != parameter.value.description()) {
    text += fmt::format(" with a gradient {}", gradient);
  }
  if (parameter.value.device().type == DeviceType::cuda) text += " on a CUDA device";
  if (!parameter.strides.empty()) text += fmt::format(" with strides [{}]", fmt::join(parameter.strides, ", "));
  return text;
}

/// A rank's description of itself for the other ranks.
struct Description {
  std::string options;
  std::vector<std::string> parameters{};
  std::vector<std::string> buffers;
  std::string fault{};  ///< empty if there is none
  std::string hint{};
};
constexpr auto description(const Description*) {
  return base::describe({"description of a rank's parameters"},
                        base::fields<&Description::options, &Description::parameters, &Description::buffers,
                                     &Description::fault, &Description::hint>());
}

Description describe_all(const std::vector<Parameter>& parameters, const std::string& options,
                         const std::vector<std::string>& buffers, const std::optional<Error>& fault) {
  Description all{.options = options, .buffers = buffers};
  std::map<const void*, std::string> names;  // the first name of a shared parameter
  for (const Parameter& parameter : parameters) {
    std::string text = describe(parameter);
    if (parameter.requires_gradient && parameter.value.data() != nullptr && parameter.value.numel() > 0) {
      const auto [first, is_new] = names.try_emplace(parameter.value.data(), parameter.name);
      if (!is_new) text += fmt::format(" shared with '{}'", first->second);
    }
    all.parameters.push_back(std::move(text));
  }
  if (fault) all.fault = fault->cause(), all.hint = fault->hint();
  return all;
}

/// "rank 0 has 'fc.weight' float32[4, 2], ranks 1, 2 have ...".
std::string who_has_what(const ProcessGroup& group, const std::vector<std::string>& answers) {
  std::string text;
  for (const auto& [answer, ranks] : group_answers(group, answers)) {
    text += fmt::format("{}{} {} {}", text.empty() ? "" : ", ", format_ranks(ranks), ranks.size() == 1 ? "has" : "have",
                        answer);
  }
  return text;
}

/// "parameter 2 differs: rank 0 has 'fc.weight' float32[4, 2], rank 1 has ..."; empty if nothing differs.
std::string first_difference(const ProcessGroup& group, const std::vector<Description>& by_rank) {
  const auto compare = [&](const std::string& what, const auto& answer_of) -> std::string {
    std::vector<std::string> answers;
    for (const Description& description : by_rank) answers.push_back(answer_of(description));
    if (std::ranges::count(answers, answers[0]) == std::ssize(answers)) return {};
    return fmt::format("{}: {}", what, who_has_what(group, answers));
  };
  std::string found = compare("the options differ", [](const Description& each) { return each.options; });
  const auto compare_lists = [&](const char* what, std::vector<std::string> Description::*list) {
    std::size_t longest = 0;
    for (const Description& description : by_rank) longest = std::max(longest, (description.*list).size());
    for (std::size_t i = 0; i < longest && found.empty(); ++i) {
      found = compare(fmt::format("{} {} differs", what, i), [&](const Description& each) {
        const auto& texts = each.*list;
        return i < texts.size() ? texts[i] : fmt::format("only {} {}s", texts.size(), what);
      });
    }
  };
  compare_lists("parameter", &Description::parameters);
  compare_lists("buffer", &Description::buffers);
  return found;
}

[[noreturn]] void throw_difference(const ProcessGroup& group, const std::vector<Bytes>& encoded, std::string cause) {
  std::vector<int> different;
  for (std::size_t rank = 1; rank < encoded.size(); ++rank) {
    if (encoded[rank] != encoded[0]) different.push_back(group.global_ranks()[rank]);
  }
  throw Error{{.code = ErrorCode::mismatch,
               .attempted = "checking that all ranks have the same parameters",
               .cause = std::move(cause),
               .ranks = std::move(different),
               .hint = "build the same model, with its parameters in the same order, on every rank"}};
}

/// Throws if some ranks have a fault.
[[noreturn]] void throw_faults(const ProcessGroup& group, const std::vector<Description>& by_rank) {
  std::vector<std::string> faults;
  for (const Description& description : by_rank) faults.push_back(description.fault);
  std::string cause;
  std::vector<int> guilty;
  for (const auto& [fault, ranks] : group_answers(group, faults)) {
    if (fault.empty()) continue;
    cause += fmt::format("{}on {}, {}", cause.empty() ? "" : "; ", format_ranks(ranks), fault);
    guilty.insert(guilty.end(), ranks.begin(), ranks.end());
  }
  std::ranges::sort(guilty);
  const auto first = std::ranges::find_if(by_rank, [](const Description& each) { return !each.fault.empty(); });
  throw Error{{.code = ErrorCode::invalid_argument,
               .attempted = "making a Reducer",
               .cause = std::move(cause),
               .ranks = std::move(guilty),
               .hint = first->hint}};
}

}  // namespace

void verify_parameters(ProcessGroup& group, const std::vector<Parameter>& parameters, const std::string& options,
                       const std::vector<std::string>& buffers, const std::optional<Error>& fault) {
  const Bytes own = base::encode(describe_all(parameters, options, buffers, fault));
  std::vector<std::int64_t> hash{static_cast<std::int64_t>(base::Fnv1a().add(own).value())};
  std::vector<std::int64_t> hashes(static_cast<std::size_t>(group.size()));
  group.all_gather(hash, hashes).wait();
  if (std::all_of(hashes.begin(), hashes.end(), [&](std::int64_t other) { return other == hashes[0]; })) {
    if (fault) throw *fault;  // the other ranks have the same error
    return;
  }
  const std::vector<Bytes> encoded = collectives::all_gather_bytes(group, own);
  std::vector<Description> by_rank;
  for (const Bytes& bytes : encoded) by_rank.push_back(base::decode<Description>(bytes));
  std::string difference = first_difference(group, by_rank);
  if (!difference.empty()) throw_difference(group, encoded, std::move(difference));
  if (std::ranges::any_of(by_rank, [](const Description& each) { return !each.fault.empty(); })) {
    throw_faults(group, by_rank);
  }
  throw_difference(group, encoded, "the ranks' parameters differ");  // equal descriptions hash differently
}

std::vector<std::string> recorded_names(const std::vector<Parameter>& parameters) {
  std::vector<std::string> names;
  for (const Parameter& parameter : parameters) {
    names.push_back(fmt::format("'{}' {}", parameter.name, parameter.value.description()));
    if (!parameter.requires_gradient) names.back() += " without a gradient";
  }
  return names;
}

}  // namespace ddp::reducer
