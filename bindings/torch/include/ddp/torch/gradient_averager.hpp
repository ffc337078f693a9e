// Connects autograd to a Reducer: reports final gradients and the start and end of backward passes, and puts gradients
// where the Reducer wants them. DistributedDataParallel is this class plus its module.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include <ddp/error.hpp>
#include <ddp/reducer.hpp>
#include <ddp/torch/gradient_places.hpp>
#include <ddp/torch/mixed_precision.hpp>
#include <ddp/torch/module_tensors.hpp>
#include <ddp/torch/tensor.hpp>
#include <ddp/wait_watch.hpp>

namespace ddp::torch {

// ---- What autograd calls. A binding of another language translates errors that leave it, and checks for its signals
// meanwhile.

/// Called while an Error is handled; throws what leaves the backward pass instead.
using TranslateError = void (*)(const Error&);
/// Null: errors leave unchanged. Set once, before the first backward pass.
inline std::atomic<TranslateError> translate_error{nullptr};
/// For the WaitWatch in backward passes; null: none. Set once.
inline std::atomic<ddp::WaitWatch::Look> look_in_backward{nullptr};
/// Whether the gradient that autograd computes now in this thread goes to a torch.distributed.autograd.context()
/// instead of to its parameter. Null: there are none. Set once.
inline std::atomic<bool (*)()> gradient_goes_to_context{nullptr};

/// Runs on any of autograd's threads.
template <class Call>
void called_by_autograd(Call&& call) {
  const ddp::WaitWatch watch(look_in_backward.load(std::memory_order_acquire));
  try {
    call();
  } catch (const Error& error) {
    if (const TranslateError translate = translate_error.load(std::memory_order_acquire)) translate(error);
    throw;
  }
}

/// Runs when a backward pass reaches a node.
struct BeforeNode final : ::torch::autograd::FunctionPreHook {
  using Gradients = ::torch::autograd::variable_list;

  explicit BeforeNode(std::function<void()> function) : call(std::move(function)) {}
  Gradients operator()(const Gradients& gradients) override {
    called_by_autograd(call);
    return gradients;
  }
  std::function<void()> call;
};

/// Runs after a node that accumulates a gradient, with what was added, which may be undefined.
struct AfterNode final : ::torch::autograd::FunctionPostHook {
  using Gradients = ::torch::autograd::variable_list;

  explicit AfterNode(std::function<void(const at::Tensor& added)> function) : call(std::move(function)) {}
  Gradients operator()(const Gradients& outputs, const Gradients& inputs) override {
    called_by_autograd([&] { call(inputs.empty() ? at::Tensor{} : inputs[0]); });
    return outputs;
  }
  std::function<void(const at::Tensor& added)> call;
};

using AccumulatorPointer = decltype(::torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

/// The node that adds to a parameter's gradient, with its hook.
struct Accumulator {
  std::size_t parameter;
  AccumulatorPointer node;  ///< autograd itself keeps it only during a backward pass
  std::uintptr_t hook;
};

// ---- What no_sync() and several_backwards() return.

/// Counts in a member of its owner while it lives; keeps the owner alive.
template <class Owner>
class [[nodiscard]] CountingGuard {
 public:
  CountingGuard(std::shared_ptr<Owner> owner, int Owner::*depth) : owner_(std::move(owner)), depth_(depth) {
    ++((*owner_).*depth_);
  }
  CountingGuard(CountingGuard&&) noexcept = default;
  CountingGuard(const CountingGuard&) = delete;
  CountingGuard& operator=(const CountingGuard&) = delete;
  ~CountingGuard() {
    if (owner_) --((*owner_).*depth_);
  }

 private:
  std::shared_ptr<Owner> owner_;
  int Owner::*depth_;
};

// ---- Which wrapper averages a parameter's gradients: several of one module may be alive, as before the old one is
// deleted.

/// Thread-safe. @tparam User its calls of any() must not re-enter this class
template <class User>
class TensorUsers {
 public:
  /// One instance per process.
  static TensorUsers& instance() {
    static TensorUsers users;
    return users;
  }

  void add(const at::Tensor& tensor, const User* user) {
    const std::lock_guard lock(mutex_);
    users_.emplace(tensor.unsafeGetTensorImpl(), user);
  }
  void remove(const at::Tensor& tensor, const User* user) {
    const std::lock_guard lock(mutex_);
    const auto [first, last] = users_.equal_range(tensor.unsafeGetTensorImpl());
    for (auto each = first; each != last; ++each) {
      if (each->second != user) continue;
      users_.erase(each);
      return;
    }
  }
  /// Whether @p holds is true of any user.
  template <class Holds>
  bool any(const at::Tensor& tensor, const Holds& holds) {
    const std::lock_guard lock(mutex_);
    const auto [first, last] = users_.equal_range(tensor.unsafeGetTensorImpl());
    for (auto each = first; each != last; ++each) {
      if (holds(*each->second)) return true;
    }
    return false;
  }

 private:
  std::mutex mutex_;
  std::multimap<const void*, const User*> users_;
};

/// A step begins when a backward pass reaches the first output of a forward pass, and ends when that backward pass
/// ends. If no output has a gradient, it begins with the first gradient of a parameter. Forward passes without a
/// backward pass cost nothing; passes of a module whose parameters are all frozen belong to no step. One backward pass
/// at a time. Always owned by a shared_ptr.
class GradientAverager : public std::enable_shared_from_this<GradientAverager> {
 public:
  /// Collective. @param tensors all parameters, including those without a gradient.
  /// @param compute_type type of parameters while passes run
  GradientAverager(std::vector<NamedTensor> tensors, ddp::ProcessGroup group, ReducerOptions options,
                   std::optional<at::ScalarType> compute_type = {})
      : tensors_(std::move(tensors)),
        low_(compute_type ? std::make_shared<LowPrecisionParameters>(tensors_, *compute_type) : nullptr),
        home_(tensors_.empty() ? at::Tensor{} : tensors_.front().tensor),
        searches_(options.find_unused_parameters),
        places_(options.find_unused_parameters || options.static_graph),
        gradients_(tensors_, low_, group,
                   // one rank exchanges nothing: its gradients stay where autograd puts them
                   options.gradient_as_bucket_view && (group.size() > 1 || options.comm_hook != nullptr)),
        wrapped_as_(tensors_),
        reducer_(reducer_parameters(tensors_), std::move(group), on_device(std::move(options))) {
    for (const std::size_t i : gradients_.own()) {
      AccumulatorPointer node = low_ ? low_->accumulator(i) : nullptr;
      if (!node) node = ::torch::autograd::impl::grad_accumulator(tensors_[i].tensor);
      const std::uintptr_t key = node->add_post_hook(
          std::make_unique<AfterNode>([this, i](const at::Tensor& added) { translated([&] { computed(i, added); }); }));
      Users::instance().add(tensors_[i].tensor, this);
      accumulators_.push_back({i, std::move(node), key});
    }
    gradients_.move_views(reducer_);
  }
  GradientAverager(const GradientAverager&) = delete;
  GradientAverager& operator=(const GradientAverager&) = delete;
  ~GradientAverager() {
    for (const Accumulator& accumulator : accumulators_) {
      Users::instance().remove(tensors_[accumulator.parameter].tensor, this);
      accumulator.node->del_post_hook(accumulator.hook);
    }
  }

  Reducer& reducer() noexcept { return reducer_; }

  /// Whether a forward pass that begins now belongs to the open step's backward pass, as when a checkpoint recomputes
  /// activations: it is not a pass of its own.
  bool recomputes() const { return open_ && ::torch::autograd::get_current_graph_task_id() != kNoTask; }

  /// Whether a pass with gradients belongs to a step: all parameters may be frozen for a while.
  bool takes_part() const {
    return std::any_of(accumulators_.begin(), accumulators_.end(),
                       [&](const Accumulator& each) { return tensors_[each.parameter].tensor.requires_grad(); });
  }

  /// Gives up a step whose backward pass failed, which may be collective. Throws Error(invalid_argument) if the last
  /// step is unfinished for another reason, or if parameters are no longer those that were wrapped.
  void before_forward() {
    repeats_ = false;
    if (queued_) give_up();
    if (open_ && by_gradient_) end_late();
    if (open_ && held_open_ == 0) {
      throw_invalid_argument("starting a forward pass", "the last backward pass has not ended its step",
                             "all of several were in several_backwards(): let it end before the last");
    }
    if (at::GradMode::is_enabled()) wrapped_as_.check_kind(tensors_);
  }

  /// Whether this forward pass repeats one whose backward pass failed, and whose buffers the ranks have exchanged.
  bool repeats() const noexcept { return repeats_; }

  /// Throws Error(invalid_argument) if a parameter has other memory than the Reducer knows.
  void check_parameters_stayed(const std::string& attempted) const { wrapped_as_.check_memory(tensors_, attempted); }
  LowPrecisionParameters::Hold hold_low() const { return {low_, true}; }

  /// @param complete whether outputs has all tensors of the forward pass' result
  void after_forward(const std::vector<at::Tensor>& outputs, bool complete) {
    if (!at::GradMode::is_enabled() || !takes_part()) return;
    std::unordered_set<::torch::autograd::Node*> roots;
    for (const at::Tensor& output : outputs) {
      if (output.defined() && output.requires_grad() && output.grad_fn()) roots.insert(output.grad_fn().get());
    }
    if (low_ && !complete) refuse_hidden_outputs();
    const auto pass = std::make_shared<ForwardPass>();
    pass->averager = weak_from_this();
    pass->synchronize = no_sync_depth_ == 0;
    if (searches_ && complete) pass->unused = unreachable(outputs);
    const auto when_reached = [pass] {
      if (const auto averager = pass->averager.lock()) averager->reached(*pass);
    };
    for (::torch::autograd::Node* const root : roots) root->add_pre_hook(std::make_unique<BeforeNode>(when_reached));
    kept_pass_ = pass;  // the module may keep tensors that depend on it
    std::erase_if(passes_, [](const auto& old) { return old.expired(); });
    passes_.push_back(pass);
  }

  void broadcast_buffers(const std::vector<NamedTensor>& buffers) {
    if (repeats_) return;
    home_.catch_up();
    with_memory_of(buffers, [&](const std::vector<TensorView>& memory) { reducer_.broadcast_buffers(memory); });
  }

  using Guard = CountingGuard<GradientAverager>;
  Guard no_sync() { return {shared_from_this(), &GradientAverager::no_sync_depth_}; }
  Guard several_backwards() { return {shared_from_this(), &GradientAverager::held_open_}; }

  /// For an optimizer, which wraps no forward pass: from now on a step begins with the first gradient of a backward
  /// pass and ends with that pass. One of every @p passes exchanges what has accumulated. Needs find_unused_parameters.
  /// @param adds_up whether an exchanged gradient may take part in the next exchange, as in averages only. Otherwise a
  /// backward pass that adds to exchanged gradients throws Error(invalid_argument) before anything is exchanged.
  /// @param translate replaces translate_error unless null
  void begin_by_gradients(std::uint64_t passes, bool adds_up = true, TranslateError translate = nullptr) {
    passes_of_step_ = passes;
    pass_ = 0;
    adds_up_ = adds_up;
    translate_ = translate;
  }
  /// The program has emptied the gradients.
  void forget_exchanged() { holds_exchanged_ = false; }
  /// Restarts the count of backward passes. @return whether the last one has exchanged since the previous call
  bool restart_passes() {
    if (queued_) give_up();  // the last backward pass failed
    pass_ = 0;
    return std::exchange(exchanged_, false);
  }
  /// A step without a backward pass: exchanges what has accumulated, zeros elsewhere. Collective. Throws
  /// Error(invalid_argument) for gradients that were exchanged before, unless they add up.
  void exchange_accumulated() {
    before_forward();
    refuse_exchanged();
    pass_ = passes_of_step_ > 0 ? passes_of_step_ - 1 : 0;
    begin_alone();
    end();
  }

  /// Parameters whose gradients are dropped at the end of each exchanging step, since an optimizer in a hook has used
  /// them.
  void drop_gradients(std::vector<std::size_t> parameters) { dropped_ = std::move(parameters); }

  /// In a Join, after this rank has repeated a step of other ranks: its gradients are the averages of theirs.
  void take_step_of_others() {
    const at::AutoGradMode no_grad(false);
    gradients_.move_views(reducer_);
    gradients_.start_step();
    for (const std::size_t index : gradients_.own()) tensors_[index].tensor.mutable_grad().reset();
    gradients_.take_others(reducer_);
    gradients_.take_sparse(reducer_);
    drop();
  }

  /// Also ends a failed step. Collective over the new group.
  void change_group(ddp::ProcessGroup group) {
    open_ = queued_ = false;
    passes_.clear();
    kept_pass_ = nullptr;
    gradients_.memory()->change_group(group);
    home_.catch_up();
    reducer_.change_group(std::move(group));
    home_.lead();
    gradients_.move_views(reducer_);
  }

 private:
  using Users = TensorUsers<GradientAverager>;
  static constexpr int kNoTask = -1;  ///< autograd's id while this thread runs no backward pass

  /// Lives as long as the graph of its outputs.
  struct ForwardPass {
    std::weak_ptr<GradientAverager> averager;
    bool synchronize = true;
    bool begun = false;  ///< its backward pass has
    std::vector<std::size_t> unused;
  };

  ReducerOptions on_device(ReducerOptions options) {
    if (!options.stream) options.stream = home_.get();
    options.gradient_as_bucket_view = gradients_.in_buckets();
    if (!gradients_.in_buckets()) return options;
    options.moved_in = [this](std::span<const std::size_t> indices) { gradients_.take_over(reducer_, indices); };
    options.allocator = [memory = gradients_.memory()](std::size_t bytes, Device on) {
      return memory->allocate(bytes, on);
    };
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

  /// A backward pass reaches an output of a forward pass, before any gradient of a parameter.
  void reached(ForwardPass& pass) {
    if (low_ && held_low_.expired()) {
      const auto hold = std::make_shared<LowPrecisionParameters::Hold>(low_, false);
      held_low_ = hold;
      // a failed pass drops it
      ::torch::autograd::Engine::get_default_engine().queue_callback([hold] { hold->end(); });
    }
    // autograd::grad() and backward(inputs) visit only part of the graph: no step unless gradients arrive
    const auto* const part = ::torch::autograd::get_current_graph_task_exec_info();
    if (part != nullptr && !part->empty()) return;
    if (!open_) begin(pass, false);
    queue_end();
  }

  /// Autograd has added to a parameter's gradient for the last time in this backward pass.
  void computed(std::size_t index, const at::Tensor& added) {
    const at::AutoGradMode no_grad(false);
    refuse_gradient_of_context(index);
    if (!open_ && passes_of_step_ > 0) {
      refuse_exchanged(index, added);
      begin_alone();
    } else if (!open_) {
      ForwardPass* const pass = pass_of_gradient(index);
      if (pass == nullptr) return;
      begin(*pass, true);
    }
    queue_end();
    if (!added.defined() && searches_) return;  // the end of the step marks it unused
    const auto producer = home_.current();
    producer ? gradients_.mark(reducer_, index, *producer) : gradients_.mark(reducer_, index);
  }

  template <class Call>
  void translated(Call&& call) {
    try {
      call();
    } catch (const Error& error) {
      if (translate_ != nullptr) translate_(error);
      throw;
    }
  }

  bool expects_gradients() const {
    return open_ || std::any_of(passes_.begin(), passes_.end(), [](const auto& pass) {
             const auto found = pass.lock();
             return found && !found->begun;
           });
  }

  /// For a backward pass that reached no output, only what the module keeps. The graph or kept_pass_ keeps the pass
  /// alive. Null if the pass belongs to another wrapper of the same module.
  ForwardPass* pass_of_gradient(std::size_t index) const {
    const auto is_expected = [](const GradientAverager& user) { return user.expects_gradients(); };
    if (!expects_gradients() && Users::instance().any(tensors_[index].tensor, is_expected)) return nullptr;
    if (low_ && held_low_.expired()) {
      throw_invalid_argument(gradients_.attempted(index), "the loss does not depend on what the forward pass returns",
                             "return the loss: mixed precision changes parameters' type when a backward pass comes to "
                             "what a forward pass returned");
    }
    for (auto pass = passes_.rbegin(); pass != passes_.rend(); ++pass) {
      if (const auto found = pass->lock(); found && !found->begun) return found.get();
    }
    throw_invalid_argument(gradients_.attempted(index),
                           "its forward pass went around DistributedDataParallel, or its step has ended",
                           "call the forward pass of the wrapper, not of the module in it; one for each backward pass "
                           "from what the module has kept");
  }

  /// The parameter's own gradient is undefined or as it was: averages of it would be wrong.
  void refuse_gradient_of_context(std::size_t index) const {
    const auto goes_there = gradient_goes_to_context.load(std::memory_order_acquire);
    if (goes_there == nullptr || !goes_there()) return;
    throw_invalid_argument(gradients_.attempted(index), "it goes to a torch.distributed.autograd.context()",
                           "call the loss's own backward(), or take torch.nn.parallel.DistributedDataParallel, also "
                           "with the backend ddp: it averages the gradients of a context");
  }

  /// Gradients that hold what all ranks have exchanged, and so would count once for each rank.
  /// @param computed the one that autograd has added @p added to, by now
  void refuse_exchanged(std::optional<std::size_t> computed = {}, const at::Tensor& added = {}) {
    if (adds_up_ || !holds_exchanged_) return;
    const at::AutoGradMode no_grad(false);
    for (const std::size_t index : gradients_.own()) {
      const at::Tensor& gradient = tensors_[index].tensor.grad();
      if (!gradient.defined() || !holds_more(gradient, computed == index ? added : at::Tensor{})) continue;
      throw_invalid_argument(gradients_.attempted(index),
                             "it holds a gradient that was exchanged before, and only averages may be exchanged twice",
                             "call zero_grad() after each step(), and backward() as often as backward_passes_per_step "
                             "says; or use op=Average");
    }
    holds_exchanged_ = false;
  }
  /// Whether @p gradient is more than @p added to nothing.
  static bool holds_more(const at::Tensor& gradient, const at::Tensor& added) {
    if (gradient.is_sparse()) return gradient._nnz() > (added.defined() ? added._nnz() : 0);
    if (!added.defined()) return gradient.ne(0).any().item<bool>();
    const at::Tensor dense = added.is_sparse() ? added.to_dense() : added;
    if (gradient.is_alias_of(dense)) return false;
    const at::Tensor before = gradient.sub(dense);
    return before.ne(0).logical_and(before.isnan().logical_not()).any().item<bool>();  // inf - inf, nan - nan
  }

  void begin_alone() {
    ForwardPass pass;
    pass.synchronize = no_sync_depth_ == 0 && ++pass_ % passes_of_step_ == 0;
    begin(pass, true);
  }

  /// @param by_gradient a gradient opened the step, which does not show from where in the pass it came
  void begin(ForwardPass& pass, bool by_gradient) {
    const at::AutoGradMode no_grad(false);
    std::size_t waiting = pass.begun ? 1 : 0;
    for (const auto& other : passes_) {
      const auto found = other.lock();
      if (found && !found->begun) ++waiting;
    }
    pass.begun = true;
    by_gradient_ = by_gradient;
    synchronize_ = pass.synchronize;
    if (places_) gradients_.place_all(reducer_);
    home_.catch_up();
    {
      std::optional<Reducer::NoSync> alone;
      if (!synchronize_) alone.emplace(reducer_.no_sync());
      // one forward pass may use what another leaves out
      reducer_.prepare_for_backward(waiting == 1 && !by_gradient ? std::span<const std::size_t>{pass.unused}
                                                                 : std::span<const std::size_t>{});
    }
    home_.lead();  // for what has moved, before autograd adds to it
    gradients_.move_views(reducer_);
    gradients_.start_step();
    open_ = true;
  }

  void queue_end() {
    if (queued_) return;
    ::torch::autograd::Engine::get_default_engine().queue_callback([weak = weak_from_this()] {
      if (const auto averager = weak.lock())
        called_by_autograd([&] { averager->translated([&] { averager->end(); }); });
    });
    queued_ = true;
  }

  /// Called for the backward pass that queued it. If a gradient opened the step, that may be a pass within another, as
  /// a checkpoint's.
  void end() {
    queued_ = false;
    if (!open_ || held_open_ > 0 || (by_gradient_ && misses())) return;
    close();
    const at::AutoGradMode no_grad(false);
    reducer_.finalize();
    home_.lead();
    for (const at::Tensor& gradient : gradients_.held()) home_.keep(gradient);  // it may come from another stream
    exchanged_ = synchronize_;  // after a pass that only adds, gradients differ again
    if (!synchronize_) return;
    holds_exchanged_ = true;
    if (places_) gradients_.take_others(reducer_);
    gradients_.take_sparse(reducer_);
    gradients_.let_go();
    drop();
  }

  /// Ends a step that a gradient opened and that still misses gradients: those would have come by now.
  void end_late() {
    by_gradient_ = false;
    end();
  }
  bool misses() const {
    return !places_ && std::any_of(accumulators_.begin(), accumulators_.end(),
                                   [&](const Accumulator& each) { return !gradients_.marked(each.parameter); });
  }

  void close() {
    open_ = queued_ = false;
    kept_pass_ = nullptr;
    for (const auto& pass : passes_) {
      if (const auto found = pass.lock()) found->begun = true;
    }
  }

  void give_up() {
    close();
    const at::AutoGradMode no_grad(false);
    home_.catch_up();
    repeats_ = reducer_.give_up();
    home_.lead();
    gradients_.let_go();
  }

  void drop() {
    for (const std::size_t index : dropped_) tensors_[index].tensor.mutable_grad().reset();
  }

  std::vector<NamedTensor> tensors_;
  const std::shared_ptr<LowPrecisionParameters> low_;     ///< null: computes in the parameters' own types
  std::weak_ptr<LowPrecisionParameters::Hold> held_low_;  ///< held by the running backward pass
  const HomeStream home_;                                 ///< for work on the module outside of passes
  const bool searches_;                                   ///< for unused parameters, in the graph
  const bool places_;                                     ///< gradients before a step: some may not be computed in it
  GradientPlaces gradients_;
  const WrappedAs wrapped_as_;
  std::vector<std::size_t> dropped_;
  Reducer reducer_;
  std::vector<Accumulator> accumulators_;

  std::vector<std::weak_ptr<ForwardPass>> passes_;
  std::shared_ptr<ForwardPass> kept_pass_;  ///< the last one, until a step ends
  bool open_ = false;                       ///< a step
  bool by_gradient_ = false;                ///< a parameter's gradient opened the step
  bool queued_ = false;                     ///< the running backward pass calls end() when it ends
  bool repeats_ = false;
  bool synchronize_ = true;       ///< in this step, or the last one
  bool exchanged_ = false;        ///< the last step, since restart_passes()
  bool adds_up_ = true;           ///< an exchanged gradient may be exchanged again
  bool holds_exchanged_ = false;  ///< the program may not have emptied gradients since they were exchanged
  TranslateError translate_ = nullptr;
  std::uint64_t passes_of_step_ = 0;  ///< 0: steps begin with forward passes
  std::uint64_t pass_ = 0;            ///< the last of passes_of_step_
  int no_sync_depth_ = 0;
  int held_open_ = 0;
};

}  // namespace ddp::torch
