// Data-parallel training of a libtorch module. Guide: docs/reference/libtorch.md.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <ddp/join.hpp>
#include <ddp/process_group.hpp>
#include <ddp/reducer.hpp>

#include <ddp/torch/gradient_averager.hpp>
#include <ddp/torch/gradient_places.hpp>
#include <ddp/torch/mixed_precision.hpp>
#include <ddp/torch/module_tensors.hpp>

/// libddp for libtorch.
namespace ddp::torch {

/// How a module is wrapped. Equal on all ranks, except gradient_as_bucket_view.
struct DistributedDataParallelOptions {
  /// Copies rank 0's buffers (running means) to all ranks before each forward pass, except after a step of no_sync.
  bool broadcast_buffers = true;
  /// Copies rank 0's parameters and buffers to all ranks at construction.
  bool init_sync = true;
  /// Parameters and buffers, by name in the module, that are neither compared nor broadcast nor averaged.
  std::set<std::string> ignored{};
  /// Parameters whose gradients are sparse, besides those of Embedding and EmbeddingBag with sparse(true).
  std::set<std::string> sparse{};
  /// @{
  /// See ReducerOptions.
  std::optional<std::size_t> bucket_cap_bytes{};
  std::size_t first_bucket_bytes = 1 * MiB;
  std::vector<std::size_t> bucket_caps_bytes{};
  /// @}
  /// Gradients live in the buckets, without memory of their own. With zero_grad(false) they are not copied, either.
  bool gradient_as_bucket_view = false;
  /// For modules whose backward passes leave out parameters: each forward pass searches its graph for them.
  bool find_unused_parameters = false;
  /// @{
  /// See ReducerOptions.
  bool static_graph = false;
  bool skip_all_reduce_unused = false;
  std::vector<std::size_t> ready_order{};
  std::optional<RecordedOrder> recorded_order{};
  /// @}
  /// Parameters that are exchanged together, after all others.
  std::set<std::string> delayed{};
  /// A parameter whose bucket they follow instead.
  std::optional<std::string> delayed_behind{};
  MixedPrecision mixed_precision{};       ///< types of parameters, gradients and buffers during passes
  std::shared_ptr<CommHook> comm_hook{};  ///< null: the average; shared with the Reducer
  /// What log() reports about the wrapper. module_name: default: the module's name().
  DdpLogOptions log{};
};

/// The type that gradients are exchanged in. Throws Error(invalid_argument) for other types than floating point.
inline std::optional<DType> reduce_dtype(const MixedPrecision& types) {
  for (const auto& type : {types.param, types.reduce, types.buffer}) {
    if (type && !c10::isFloatingType(*type)) {
      throw_invalid_argument("wrapping a module in mixed precision",
                             std::string{at::toString(*type)} + " is not a floating-point type",
                             "give torch::kBFloat16, torch::kHalf or torch::kFloat");
    }
  }
  const auto& type = types.reduce ? types.reduce : types.param;
  return type ? dtype_of(*type) : std::nullopt;
}

/// The options of a model's Reducer. Throws like reduce_dtype().
inline ReducerOptions reducer_options(const DistributedDataParallelOptions& options) {
  return {.bucket_cap_bytes = options.bucket_cap_bytes,
          .first_bucket_bytes = options.first_bucket_bytes,
          .bucket_caps_bytes = options.bucket_caps_bytes,
          .rebuild_buckets = true,
          .broadcast_parameters = options.init_sync,
          .gradient_as_bucket_view = options.gradient_as_bucket_view,
          .find_unused_parameters = options.find_unused_parameters,
          .static_graph = options.static_graph,
          .skip_all_reduce_unused = options.skip_all_reduce_unused,
          .ready_order = options.ready_order,
          .recorded_order = options.recorded_order,
          .reduce_dtype = reduce_dtype(options.mixed_precision),
          .comm_hook = options.comm_hook,
          .log = options.log};
}

/// Throws Error(invalid_argument) for names that the module does not have. @param what is to be done with them.
inline void check_names(const ::torch::nn::Module& module, const std::set<std::string>& names, const char* what) {
  const auto parameters = module.named_parameters();
  const auto buffers = module.named_buffers();
  for (const std::string& name : names) {
    if (parameters.contains(name) || buffers.contains(name)) continue;
    throw_invalid_argument("wrapping a module", "it has no parameter or buffer '" + name + "' to " + what,
                           "names are those of the module's named_parameters(), without the wrapper's 'module.'");
  }
}

/// A module whose gradients are averages over a group's ranks when backward() returns. Its parameters are those of the
/// wrapped module, their names prefixed with "module.", as in PyTorch.
///
/// Construction is collective; throws Error(mismatch) on all ranks if their modules or options differ. The program
/// calls forward() and backward(), equally often on all ranks. backward() throws the errors of a backward pass, as
/// ddp::Error. One thread at a time; no other collectives on the group while a backward pass runs.
template <class Net>
class DistributedDataParallelImpl : public ::torch::nn::Module {
 public:
  /// @param module what torch::nn::Module::register_module takes: a holder, or a shared_ptr
  DistributedDataParallelImpl(Net module, ddp::ProcessGroup group, const DistributedDataParallelOptions& options = {})
      : ::torch::nn::Module("DistributedDataParallel"),
        module_(register_module("module", std::move(module))),
        ignored_(options.ignored),
        compute_type_(options.mixed_precision.param),
        wants_buffers_(options.broadcast_buffers),
        broadcasts_buffers_(wants_buffers_ && group.size() > 1) {
    check_names(inner(), ignored_, "ignore");
    check_names(inner(), options.sparse, "take as sparse");
    check_names(inner(), options.delayed, "delay");
    if (options.delayed_behind) check_names(inner(), {*options.delayed_behind}, "delay others behind");
    std::vector<NamedTensor> parameters = distinct_tensors(inner().named_parameters(), ignored_);
    ReducerOptions for_reducer = reducer_options(options);
    const auto sparse = sparse_parameters(inner());
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      NamedTensor& each = parameters[i];
      each.sparse = sparse.contains(each.tensor.unsafeGetTensorImpl()) || options.sparse.contains(each.name);
      if (options.delayed.contains(each.name)) for_reducer.delayed.push_back(i);
      if (options.delayed_behind == each.name) for_reducer.delayed_behind = i;
    }
    if (wants_buffers_ || options.init_sync) {
      for (const NamedTensor& each : distinct_tensors(inner().named_buffers(), ignored_)) {
        for_reducer.buffers.push_back("'" + each.name + "' " + description_of(each.tensor));
      }
    }
    DdpLogOptions& log = for_reducer.log;
    if (log.module_name.empty()) log.module_name = inner().name();
    log.broadcast_buffers = wants_buffers_;
    averager_ = std::make_shared<GradientAverager>(std::move(parameters), std::move(group), std::move(for_reducer),
                                                   compute_type_);
    if (const auto type = options.mixed_precision.buffer) {
      cast_buffers(distinct_tensors(inner().named_buffers(), ignored_), *type);
    }
    if (options.init_sync) broadcast_buffers();
  }

  /// The wrapped module's forward pass, with its arguments and result.
  template <class... Arguments>
  auto forward(Arguments&&... arguments) {
    if (averager_->recomputes()) return pass(std::forward<Arguments>(arguments)...);
    averager_->before_forward();
    if (at::GradMode::is_enabled()) averager_->reducer().start_forward();
    broadcast_buffers();
    auto outputs = pass(std::forward<Arguments>(arguments)...);
    std::vector<at::Tensor> found;
    const bool complete = at::GradMode::is_enabled() && find_tensors(outputs, found);
    averager_->after_forward(found, complete);
    return outputs;
  }

  /// The wrapped module, for all but training: gradients of forward passes that bypass the wrapper are an error.
  auto& module() noexcept { return module_; }

  /// Backward passes of forward passes that run while this lives exchange nothing, so gradients accumulate; the next
  /// one averages the sum. Use it on all ranks for the same passes.
  GradientAverager::Guard no_sync() { return averager_->no_sync(); }
  /// While this lives, backward passes do not end the step: destroy it before the last one of a step.
  GradientAverager::Guard several_backwards() { return averager_->several_backwards(); }

  /// For a ddp::Join of ranks with different numbers of batches. While it lasts, parameters and buffers must keep their
  /// memory. Throws Error(invalid_argument) for a buffer that is not contiguous, and if torch::load or to() has given a
  /// parameter other memory since it was wrapped.
  Joinable& joinable() {
    averager_->check_parameters_stayed(kJoining);
    std::vector<TensorView> memory;
    for (const auto& [name, tensor, sparse] : buffers_to_broadcast()) {
      if (!tensor.is_contiguous()) {
        throw_invalid_argument(kJoining, "buffer '" + name + "' is not contiguous", "register its contiguous()");
      }
      memory.push_back(bytes_of(tensor, "joining ranks with the buffer '" + name + "'"));
    }
    return averager_->reducer().joinable(std::move(memory));
  }

  /// Continues with another group, also after a failure. Collective over the new group.
  void change_group(ddp::ProcessGroup group) {
    broadcasts_buffers_ = wants_buffers_ && group.size() > 1;
    averager_->change_group(std::move(group));
  }

  /// PyTorch's DDP logging data, and more. Do not call while a backward pass runs.
  DdpLog log() const { return averager_->reducer().log(); }
  /// Records the times of each bucket in this many steps, beginning with the next; discards an earlier trace.
  void trace(std::size_t steps) { averager_->reducer().trace(steps); }
  /// For Perfetto (https://ui.perfetto.dev) and chrome://tracing. Not while a backward pass runs.
  std::string trace_json() const { return averager_->reducer().trace_json(); }
  /// Times, buckets, recorded_order() for the next run.
  const Reducer& reducer() const noexcept { return averager_->reducer(); }

 private:
  static constexpr auto kJoining = "joining ranks with inputs of different length";

  ::torch::nn::Module& inner() { return *module_; }

  template <class... Arguments>
  auto pass(Arguments&&... arguments) {
    if (!compute_type_) return module_->forward(std::forward<Arguments>(arguments)...);
    const auto hold = averager_->hold_low();
    const auto call = [&](auto... each) { return module_->forward(each.get()...); };
    return call(CastArgument<Arguments>(std::forward<Arguments>(arguments), *compute_type_)...);
  }

  std::vector<NamedTensor> buffers_to_broadcast() {
    if (!broadcasts_buffers_) return {};
    return distinct_tensors(inner().named_buffers(), ignored_);
  }

  void broadcast_buffers() {
    const std::vector<NamedTensor> buffers = buffers_to_broadcast();
    if (buffers.empty()) return;
    averager_->broadcast_buffers(buffers);
  }

  Net module_;
  std::set<std::string> ignored_;
  std::optional<at::ScalarType> compute_type_;
  bool wants_buffers_;
  bool broadcasts_buffers_;  ///< there are other ranks to get them
  std::shared_ptr<GradientAverager> averager_;
};

/// DistributedDataParallel model{net, group}: a handle like torch::nn::Linear; copies refer to the same module.
template <class Net>
class DistributedDataParallel : public ::torch::nn::ModuleHolder<DistributedDataParallelImpl<Net>> {
 public:
  /// Collective. Wraps @p module, which is shared. Throws Error like ddp::Reducer's constructor.
  DistributedDataParallel(Net module, ddp::ProcessGroup group, const DistributedDataParallelOptions& options = {})
      : ::torch::nn::ModuleHolder<DistributedDataParallelImpl<Net>>(
            std::make_shared<DistributedDataParallelImpl<Net>>(std::move(module), std::move(group), options)) {}

  /// The forward pass; ModuleHolder's own operator cannot call one that is a template.
  template <class... Arguments>
  auto operator()(Arguments&&... arguments) {
    return this->impl_->forward(std::forward<Arguments>(arguments)...);
  }
};

}  // namespace ddp::torch
