// A Reducer whose rank has run out of inputs: it repeats the others' collectives, with zeros.
#include <algorithm>

#include <ddp/broadcast_coalesced.hpp>

#include "base/errors.hpp"
#include "reducer/options_check.hpp"
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
  if (!join.options().divide_by_initial_world_size && options_.comm_hook) {
    refuse("hooks divide by the number of all ranks", "set divide_by_initial_world_size");
  }
  for (const std::size_t owner : list_.owners()) {
    const TensorView& value = parameters_[owner].value;
    if (join.options().divide_by_initial_world_size || value.device().type == DeviceType::cpu) continue;
    if (reducer::divides_on_device(value.dtype())) continue;
    refuse(
        "gradients on a CUDA device that are no floating-point numbers of 16 bits or more can be divided by the "
        "number of all ranks only",
        "set divide_by_initial_world_size");
  }
  join_ = &join;
}

void Reducer::Impl::shadow(JoinEvent event) {
  note_error([&] {
    switch (event) {
      case JoinEvent::step: return shadow_step();
      case JoinEvent::local_step: return shadow_local_step();
      case JoinEvent::buffers:
        return broadcast_coalesced(group_, join_buffers_, join_->highest_active(), options_.stream);
    }
  });
}

void Reducer::Impl::shadow_local_step() {
  synchronize_ = false;
  sparse_.forget();
  std::ranges::fill(sources_, nullptr);
  finish_local_step();
  reset_sources();
}

void Reducer::Impl::shadow_step() {
  if (broken_) base::throw_invalid_argument("repeating the step of other ranks", "an earlier one has failed", {});
  if (rebuild_due_) rebuild();
  synchronize_ = true;
  for (const std::size_t owner : list_.owners()) used_[owner].store(false, std::memory_order_relaxed);
  std::ranges::fill(sources_, nullptr);
  sparse_.forget();
  const bool counting = marks_.counting();
  shadow_ = true;
  start_step({});
  in_step_ = false;
  broken_ = true;
  reducer::StepEnd end(options_.comm_hook.get(), buckets_);
  for (const std::size_t owner : list_.owners()) {
    if (counting || !marks_.complete(owner)) contribute(owner, nullptr);
  }
  buckets_.finish_launching(group_);
  conclude({}, counting || options_.find_unused_parameters || asks_used_, false);
  if (counting) end_counting();
  end.complete = true;
  record(backward_started_);  // it has had nothing to compute
  broken_ = false;
}

void Reducer::Impl::end_counting() {
  std::vector<std::int64_t> counts;
  for (std::size_t i = 0; i < parameters_.size(); ++i) counts.push_back(marks_.count(i));
  if (join_ != nullptr) {
    std::vector<std::int64_t> theirs = counts;
    group_.broadcast(theirs, join_->highest_active()).wait();
    if (shadow_) counts = std::move(theirs);  // it has nothing to count
  }
  marks_.accept_counts(counts);
}

void Reducer::Impl::finish_join(int last) {
  std::vector<TensorView> all;
  for (const Parameter& parameter : parameters_) all.push_back(parameter.value);
  all.insert(all.end(), join_buffers_.begin(), join_buffers_.end());
  note_error([&] { broadcast_coalesced(group_, all, last, options_.stream); });
}

}  // namespace ddp
