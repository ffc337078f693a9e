// A Reducer whose rank has run out of inputs: it repeats the others' collectives, with zeros.
#include <algorithm>

#include <ddp/broadcast_coalesced.hpp>

#include "base/invalid_argument.hpp"
#include "reducer/reducer_impl.hpp"

namespace ddp {

void Reducer::Impl::enter_join(Join& join) {
  const auto refuse = [](const char* cause, const char* hint) {
    base::throw_invalid_argument("joining ranks with inputs of different length", cause, hint);
  };
  if (join_ != nullptr) refuse("the Reducer is in another Join", "end that before");
  if (in_step_) refuse("the last step was not finalized", "call finalize() after each");
  if (options_.skip_all_reduce_unused) {
    refuse("with skip_all_reduce_unused ranks must agree on what is unused", "leave it off");
  }
  if (!join.options().divide_by_initial_world_size && (options_.comm_hook || !list_.on_cpu())) {
    refuse("hooks, and CUDA devices, divide by the number of all ranks", "set divide_by_initial_world_size");
  }
  join_ = &join;
}

void Reducer::Impl::shadow(JoinEvent event) {
  switch (event) {
    case JoinEvent::step: return shadow_step();
    case JoinEvent::local_step:
      synchronize_ = false;
      accumulated_ = true;
      return;
    case JoinEvent::buffers:
      return broadcast_coalesced(group_, join_buffers_, join_->highest_active(), options_.stream);
  }
}

void Reducer::Impl::shadow_step() {
  if (broken_) base::throw_invalid_argument("repeating the step of other ranks", "an earlier one has failed", {});
  if (rebuild_due_) rebuild();
  synchronize_ = true;
  for (const std::size_t owner : list_.owners()) used_[owner].store(false, std::memory_order_relaxed);
  std::ranges::fill(sources_, nullptr);
  const bool counting = marks_.counting();
  start_step({});
  in_step_ = false;
  broken_ = true;
  reducer::StepEnd end(options_.comm_hook.get());
  for (const std::size_t owner : list_.owners()) {
    if (counting || !marks_.complete(owner)) buckets_.contribute(owner, nullptr, group_);
  }
  buckets_.launch_full(group_);
  conclude({}, counting || options_.find_unused_parameters);
  end.complete = true;
  if (counting) marks_.stop_counting();
  record(Clock::now());
  broken_ = false;
}

void Reducer::Impl::finish_join(int last) {
  std::vector<TensorView> all;
  for (const Parameter& parameter : parameters_) all.push_back(parameter.value);
  all.insert(all.end(), join_buffers_.begin(), join_buffers_.end());
  broadcast_coalesced(group_, all, last, options_.stream);
}

}  // namespace ddp
