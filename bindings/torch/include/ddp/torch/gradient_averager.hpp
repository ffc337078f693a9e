// Between autograd and a Reducer: tells it which gradients are final, when a backward pass begins and ends, and puts
// gradients where it wants them. What DistributedDataParallel is made of, apart from its module.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <ddp/reducer.hpp>

#include <ddp/torch/autograd_calls.hpp>
#include <ddp/torch/bucket_memory.hpp>
#include <ddp/torch/counting_guard.hpp>
#include <ddp/torch/mixed_precision.hpp>
#include <ddp/torch/module_tensors.hpp>
#include <ddp/torch/outputs.hpp>
#include <ddp/torch/sparse_gradients.hpp>
#include <ddp/torch/tensor.hpp>

namespace ddp::torch {

/// A step begins when a backward pass comes to the first output of a forward pass, and ends when that backward pass
/// does. Forward passes without a backward pass cost nothing. One backward pass at a time. Always in a shared_ptr.
class GradientAverager : public std::enable_shared_from_this<GradientAverager> {
 public:
  /// Collective. @param tensors all parameters, those without a gradient, too.
  /// @param compute_type of parameters while passes run.
  GradientAverager(std::vector<NamedTensor> tensors, ddp::ProcessGroup group, ReducerOptions options,
                   std::optional<at::ScalarType> compute_type = {})
      : tensors_(std::move(tensors)),
        low_(compute_type ? std::make_shared<LowPrecisionParameters>(tensors_, *compute_type) : nullptr),
        home_(tensors_.empty() ? at::Tensor{} : tensors_.front().tensor),
        view_(options.gradient_as_bucket_view),
        searches_(options.find_unused_parameters),
        places_(options.find_unused_parameters || options.static_graph),
        memory_(std::make_shared<BucketMemory>(group)),
        held_(tensors_.size()),
        views_(tensors_.size()),
        marked_(tensors_.size()),
        reducer_(reducer_parameters(tensors_), std::move(group), on_device(std::move(options))) {
    for (const NamedTensor& each : tensors_) given_.push_back(each.tensor.data_ptr());
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (!tensors_[i].tensor.requires_grad()) continue;
      AccumulatorPointer node = low_ ? low_->accumulator(i) : nullptr;
      if (!node) node = ::torch::autograd::impl::grad_accumulator(tensors_[i].tensor);
      const std::uintptr_t key =
          node->add_post_hook(std::make_unique<AfterNode>([this, i](bool defined) { computed(i, defined); }));
      accumulators_.push_back({i, std::move(node), key});
    }
    if (view_) move_views();
  }
  GradientAverager(const GradientAverager&) = delete;
  GradientAverager& operator=(const GradientAverager&) = delete;
  ~GradientAverager() {
    for (const Accumulator& accumulator : accumulators_) accumulator.node->del_post_hook(accumulator.hook);
  }

  Reducer& reducer() noexcept { return reducer_; }

  /// Throws Error(invalid_argument) while the last step has not ended, or its backward pass has failed.
  void before_forward() const {
    if (!queued_ && (!open_ || held_open_ > 0)) return;
    throw_invalid_argument("starting a forward pass", "the last backward pass has not ended its step",
                           "it has failed, or all of several were in several_backwards(), which ends before the last; "
                           "after a failure call change_group() on all ranks");
  }

  /// Throws Error(invalid_argument) where a parameter has other memory than the Reducer knows.
  void check_parameters_stayed(const std::string& attempted) const { check_stayed(tensors_, given_, attempted); }

  LowPrecisionParameters::Hold hold_low() const { return {low_, true}; }

  /// @param complete outputs has all tensors of the forward pass' result.
  void after_forward(const std::vector<at::Tensor>& outputs, bool complete) {
    if (!at::GradMode::is_enabled()) return;
    std::unordered_set<::torch::autograd::Node*> roots;
    bool differentiable = !complete;
    for (const at::Tensor& output : outputs) {
      if (!output.defined() || !output.requires_grad()) continue;
      differentiable = true;
      if (output.grad_fn()) roots.insert(output.grad_fn().get());
    }
    if (!differentiable) return;
    if (low_ && !complete) refuse_hidden_outputs();
    const auto pass = std::make_shared<ForwardPass>();
    pass->averager = weak_from_this();
    pass->synchronize = no_sync_depth_ == 0;
    if (searches_ && complete) pass->unused = unreachable(outputs);
    const auto when_reached = [pass] {
      if (const auto averager = pass->averager.lock()) averager->reached(*pass);
    };
    for (::torch::autograd::Node* const root : roots) root->add_pre_hook(std::make_unique<BeforeNode>(when_reached));
    kept_pass_ = complete && !roots.empty() ? nullptr : pass;
    std::erase_if(passes_, [](const auto& old) { return old.expired(); });
    passes_.push_back(pass);
  }

  void broadcast_buffers(const std::vector<NamedTensor>& buffers) {
    home_.catch_up();
    with_memory_of(buffers, [&](const std::vector<TensorView>& memory) { reducer_.broadcast_buffers(memory); });
  }

  using Guard = CountingGuard<GradientAverager>;
  Guard no_sync() { return {shared_from_this(), &GradientAverager::no_sync_depth_}; }
  Guard several_backwards() { return {shared_from_this(), &GradientAverager::held_open_}; }

  /// Whose gradients go at the end of each step that exchanges them, since an optimizer in a hook has used them.
  void drop_gradients(std::vector<std::size_t> parameters) { dropped_ = std::move(parameters); }

  /// In a Join, when this rank has repeated a step of others: its gradients are the averages of theirs.
  void take_step_of_others() {
    const at::AutoGradMode no_grad(false);
    if (view_) move_views();
    marked_.assign(tensors_.size(), false);
    for (const Accumulator& accumulator : accumulators_) tensors_[accumulator.parameter].tensor.mutable_grad().reset();
    take_others_gradients();
    take_sparse_averages();
    drop();
  }

  /// Also ends a step that has failed. Collective over the new group.
  void change_group(ddp::ProcessGroup group) {
    open_ = false;
    queued_ = false;
    passes_.clear();
    kept_pass_ = nullptr;
    memory_->change_group(group);
    home_.catch_up();
    reducer_.change_group(std::move(group));
    home_.lead();
    if (view_) move_views();
  }

 private:
  /// Lives as long as the graph of its outputs.
  struct ForwardPass {
    std::weak_ptr<GradientAverager> averager;
    bool synchronize = true;
    bool begun = false;  ///< its backward pass
    std::vector<std::size_t> unused;
  };

  ReducerOptions on_device(ReducerOptions options) const {
    if (!options.stream) options.stream = home_.get();
    if (!view_) return options;
    options.allocator = [memory = memory_](std::size_t bytes, Device on) { return memory->allocate(bytes, on); };
    return options;
  }

  std::vector<std::size_t> unreachable(const std::vector<at::Tensor>& outputs) const {
    const auto nodes = reachable_nodes(outputs);
    std::vector<std::size_t> unused;
    for (const Accumulator& accumulator : accumulators_) {
      if (!nodes.contains(accumulator.node.get())) unused.push_back(accumulator.parameter);
    }
    return unused;
  }

  /// A backward pass comes to an output of a forward pass: before any gradient of a parameter.
  void reached(ForwardPass& pass) {
    if (low_ && held_low_.expired()) {
      const auto hold = std::make_shared<LowPrecisionParameters::Hold>(low_, false);
      held_low_ = hold;
      // a pass that fails drops it
      ::torch::autograd::Engine::get_default_engine().queue_callback([hold] { hold->end(); });
    }
    // autograd::grad() and backward(inputs) visit a part of the graph: no step, unless gradients come
    const auto* const part = ::torch::autograd::get_current_graph_task_exec_info();
    if (part != nullptr && !part->empty()) return;
    if (!open_) begin(pass);
    queue_end();
  }

  /// Autograd has added to a parameter's gradient for the last time in a backward pass.
  void computed(std::size_t index, bool has_gradient) {
    const at::AutoGradMode no_grad(false);
    if (!open_) begin(pass_of_gradient(index));
    queue_end();
    if (tensors_[index].sparse) {
      if (!has_gradient && searches_) return;
      marked_[index] = true;
      const SparseGradient rows = rows_at(index);
      const auto producer = home_.current();
      return producer ? reducer_.mark_ready(index, rows, *producer) : reducer_.mark_ready(index, rows);
    }
    at::Tensor& gradient = tensors_[index].tensor.mutable_grad();
    if (!has_gradient && (places_ || !gradient.defined())) {
      if (searches_) return;  // which ends the step as unused
      if (!gradient.defined()) gradient = laid_out_like(like(index)).zero_();
    }
    place(index, gradient);
    marked_[index] = true;
    const auto producer = home_.current();
    const auto mark = [&](const auto&... memory) {
      producer ? reducer_.mark_ready(index, memory..., *producer) : reducer_.mark_ready(index, memory...);
    };
    if (view_) return mark();
    mark(memory_of(gradient, [&] { return attempted(index); }));
  }

  /// Of a backward pass that has come to no output: of what the module keeps. The graph or kept_pass_ keeps it alive.
  ForwardPass& pass_of_gradient(std::size_t index) const {
    for (auto pass = passes_.rbegin(); pass != passes_.rend(); ++pass) {
      if (const auto found = pass->lock(); found && !found->begun) return *found;
    }
    throw_invalid_argument(attempted(index), "its forward pass went around DistributedDataParallel",
                           "call the forward pass of the wrapper, not of the module in it");
  }

  void begin(ForwardPass& pass) {
    const at::AutoGradMode no_grad(false);
    std::size_t waiting = pass.begun ? 1 : 0;
    for (const auto& other : passes_) {
      const auto found = other.lock();
      if (found && !found->begun) ++waiting;
    }
    pass.begun = true;
    synchronize_ = pass.synchronize;
    if (places_) place_all();
    home_.catch_up();
    {
      std::optional<Reducer::NoSync> alone;
      if (!synchronize_) alone.emplace(reducer_.no_sync());
      // what one of several forward passes leaves out, another may use
      reducer_.prepare_for_backward(waiting == 1 ? std::span<const std::size_t>{pass.unused}
                                                 : std::span<const std::size_t>{});
    }
    home_.lead();  // for what has moved, before autograd adds to it
    if (view_) move_views();
    marked_.assign(tensors_.size(), false);
    open_ = true;
  }

  void queue_end() {
    if (queued_) return;
    ::torch::autograd::Engine::get_default_engine().queue_callback([weak = weak_from_this()] {
      if (const auto averager = weak.lock()) called_by_autograd([&] { averager->end(); });
    });
    queued_ = true;
  }

  void end() {
    queued_ = false;
    if (!open_ || held_open_ > 0) return;
    open_ = false;
    kept_pass_ = nullptr;
    for (const auto& pass : passes_) {
      if (const auto found = pass.lock()) found->begun = true;
    }
    const at::AutoGradMode no_grad(false);
    reducer_.finalize();
    home_.lead();
    for (const at::Tensor& gradient : held_) home_.keep(gradient);  // made in another stream, maybe
    if (!synchronize_) return;
    if (places_) take_others_gradients();
    take_sparse_averages();
    held_.assign(tensors_.size(), at::Tensor{});
    drop();
  }

  // gradients

  std::string attempted(std::size_t index) const { return "averaging the gradient of '" + tensors_[index].name + "'"; }

  /// What a parameter's gradient is like.
  const at::Tensor& like(std::size_t index) const { return low_ ? low_->master(index) : tensors_[index].tensor; }

  /// Makes @p gradient lie where, or as, the Reducer wants it.
  void place(std::size_t index, at::Tensor& gradient) {
    const at::Tensor& parameter = like(index);
    const bool low = low_ && gradient.scalar_type() == low_->type();
    if (gradient.layout() != at::kStrided) {
      throw_invalid_argument(attempted(index), "it is sparse",
                             "make it dense (sparse=False), or take it from an Embedding or EmbeddingBag; in C++ "
                             "DistributedDataParallelOptions::sparse can name its parameter");
    }
    if (view_) {
      const at::Tensor& view = views_[index];
      if (gradient.data_ptr() == view.data_ptr() && lies_like(gradient, parameter)) return;
      if ((gradient.scalar_type() != view.scalar_type() && !low) || gradient.sizes() != view.sizes()) {
        throw_invalid_argument(attempted(index), "it is " + description_of(gradient) + ", not as its parameter",
                               "leave gradients to autograd");
      }
      at::Tensor(view).copy_(gradient);
      gradient = view;
      return;
    }
    const bool other_type = low && gradient.scalar_type() != parameter.scalar_type();
    if ((other_type || !lies_like(gradient, parameter)) && gradient.sizes() == parameter.sizes()) {
      gradient = laid_out_like(parameter).copy_(gradient);
    }
    held_[index] = gradient;
  }

  /// Tells the Reducer about all gradients that there are, since parameters may stay without a new one.
  void place_all() {
    for (const Accumulator& accumulator : accumulators_) {
      const std::size_t index = accumulator.parameter;
      if (tensors_[index].sparse) {
        reducer_.place_gradient(index, rows_at(index));
        continue;
      }
      at::Tensor& gradient = tensors_[index].tensor.mutable_grad();
      if (gradient.defined()) {
        place(index, gradient);
      } else if (view_) {
        at::Tensor(views_[index]).zero_();
      } else {
        held_[index].reset();
      }
      if (view_) continue;
      reducer_.place_gradient(
          index, gradient.defined() ? memory_of(gradient, [&] { return attempted(index); }) : TensorView{});
    }
  }

  SparseGradient rows_at(std::size_t index) {
    const at::Tensor& gradient = tensors_[index].tensor.grad();
    return gradient.defined() ? rows_of(gradient, like(index), held_[index], attempted(index)) : SparseGradient{};
  }

  void take_sparse_averages() {
    for (const Accumulator& accumulator : accumulators_) {
      const std::size_t i = accumulator.parameter;
      if (!tensors_[i].sparse || !reducer_.used(i)) continue;
      tensors_[i].tensor.mutable_grad() = sparse_tensor(reducer_.sparse_average(i), like(i));
    }
  }

  /// Buckets may have been made anew.
  void move_views() {
    bool first = true;
    for (const Accumulator& accumulator : accumulators_) {
      const std::size_t index = accumulator.parameter;
      if (tensors_[index].sparse) continue;
      const bool stays = views_[index].defined() && views_[index].data_ptr() == reducer_.bucket_view(index).data();
      if (std::exchange(first, false) && stays) return;
      memory_->move(views_[index], tensors_[index].tensor.mutable_grad(), reducer_.bucket_view(index).data(),
                    like(index));
    }
  }

  /// Parameters that only other ranks have used get the average, too.
  void take_others_gradients() {
    for (const Accumulator& accumulator : accumulators_) {
      const std::size_t index = accumulator.parameter;
      if (marked_[index] || tensors_[index].sparse || !reducer_.used(index)) continue;
      at::Tensor& gradient = tensors_[index].tensor.mutable_grad();
      if (view_) {
        gradient = views_[index];
      } else if (const TensorView average = reducer_.bucket_view(index); !gradient.defined() && average.data()) {
        gradient = laid_out_like(like(index));
        copy_elements(average, gradient);
      }
    }
  }

  void drop() {
    for (const std::size_t index : dropped_) tensors_[index].tensor.mutable_grad().reset();
  }

  std::vector<NamedTensor> tensors_;
  const std::shared_ptr<LowPrecisionParameters> low_;     ///< none: computed in the parameters' own types
  std::weak_ptr<LowPrecisionParameters::Hold> held_low_;  ///< of the backward pass that runs
  const HomeStream home_;                                 ///< of what is done with the module outside of passes
  const bool view_;
  const bool searches_;  ///< for unused parameters, in the graph
  const bool places_;    ///< gradients before a step: some may not be computed in it
  const std::shared_ptr<BucketMemory> memory_;
  std::vector<const void*> given_;  ///< by parameter: its memory
  std::vector<at::Tensor> held_;    ///< by parameter: gradients that the Reducer knows, until they are averaged
  std::vector<at::Tensor> views_;   ///< by parameter: its place in the buckets
  std::vector<bool> marked_;        ///< by parameter, in this step
  std::vector<std::size_t> dropped_;
  Reducer reducer_;
  std::vector<Accumulator> accumulators_;

  std::vector<std::weak_ptr<ForwardPass>> passes_;
  std::shared_ptr<ForwardPass> kept_pass_;  ///< the last one, if nothing of its outputs keeps it
  bool open_ = false;                       ///< a step
  bool queued_ = false;                     ///< the end of the backward pass that runs calls end()
  bool synchronize_ = true;                 ///< this step, or the last one
  int no_sync_depth_ = 0;
  int held_open_ = 0;
};

}  // namespace ddp::torch
