// A Reducer's buckets: which parameters they hold, in which group, and where gradients are.
#include <algorithm>
#include <functional>

#include "reducer/bucket_memory.hpp"
#include "reducer/options_check.hpp"
#include "reducer/parameter_check.hpp"
#include "reducer/reducer_impl.hpp"

namespace ddp {

ProcessGroup Reducer::Impl::compare(ProcessGroup group) {
  std::optional<Error> fault;  // the other ranks may have none, and must not wait for this one
  try {
    reducer::check_options(options_, parameters_);
    static_cast<void>(ParameterList(parameters_, options_));
    device_ = reducer::device_executor(parameters_, options_, group);
  } catch (const Error& error) {
    fault = error;
  }
  reducer::verify_parameters(group, parameters_, reducer::describe(options_), options_.buffers, fault);
  if (options_.comm_hook) options_.comm_hook->join_group(group);
  return group;
}

reducer::BucketPlan Reducer::Impl::plan_of(const std::vector<std::size_t>& order, bool delayed) const {
  std::vector<reducer::TensorInfo> infos;
  std::vector<std::size_t> indices;
  for (const std::size_t index : order) {
    const bool is_delayed =
        std::ranges::any_of(options_.delayed, [&](std::size_t i) { return list_.owner(i) == index; });
    if (is_delayed != delayed || sparse_.has(index)) continue;
    const TensorView& value = parameters_[index].value;
    infos.push_back({value.size_bytes(), value.dtype(), value.device()});
    indices.push_back(index);
  }
  if (indices.empty()) return {};
  return reducer::assign_buckets(infos, delayed ? std::vector<std::size_t>{SIZE_MAX} : reducer::bucket_limits(options_),
                                 indices);
}

reducer::BucketPlan Reducer::Impl::plan_of(const std::vector<std::size_t>& order) const {
  return with_delayed(plan_of(order, false), order);
}

reducer::BucketPlan Reducer::Impl::with_delayed(reducer::BucketPlan plan, const std::vector<std::size_t>& order) const {
  auto place = plan.end();
  if (options_.delayed_behind) {
    const std::size_t owner = list_.owner(*options_.delayed_behind);
    place = std::ranges::find_if(plan, [&](const auto& bucket) { return std::ranges::count(bucket, owner) > 0; });
    if (place != plan.end()) ++place;
  }
  const reducer::BucketPlan delayed = plan_of(order, true);
  plan.insert(place, delayed.begin(), delayed.end());
  return plan;
}

reducer::BucketPlan Reducer::Impl::initial_plan() const {
  if (!order_.empty() && !options_.ready_order.empty()) return plan_of(order_);
  // parameters are usually listed in the order of the forward pass; their gradients come in reverse
  reducer::BucketPlan plan = plan_of(list_.owners(), false);
  std::ranges::sort(plan, std::greater<>{}, [](const auto& bucket) { return bucket.front(); });
  return with_delayed(std::move(plan), list_.owners());
}

void Reducer::Impl::rebuild() {
  if (join_ != nullptr) join_->active();  // throws if others take another step, and so do not rebuild
  std::vector<std::size_t> own = list_.complete_order(arrivals_);
  // this rank has taken no step: parameters are usually listed in the order of the forward pass
  if (arrivals_.empty()) std::ranges::reverse(own);
  const auto order = std::make_shared<std::vector<std::int64_t>>(own.begin(), own.end());
  group_.broadcast(*order, 0, {{}, order}).wait_watched();
  order_.assign(order->begin(), order->end());
  rebuilt_ = true;
  rebuild_due_ = false;
  auto plan = plan_of(order_);
  if (plan == buckets_.plan()) return;
  // Gradients that have been placed for the step that begins stay so, none included; those in the buckets move.
  const std::vector<void*> placed = sources_;
  std::vector<void*> former(parameters_.size());
  for (const std::size_t owner : list_.owners()) former[owner] = own_memory(owner);
  make_buckets(std::move(plan));
  for (const std::size_t owner : list_.owners()) {
    if (placed[owner] != former[owner]) sources_[owner] = placed[owner];
  }
}

void Reducer::Impl::make_buckets(reducer::BucketPlan plan) {
  buckets_.make(std::move(plan), group_, device_);
  reset_sources();
}

void* Reducer::Impl::own_memory(std::size_t owner) const {
  if (sparse_.has(owner)) return nullptr;
  return options_.gradient_as_bucket_view ? buckets_.view(owner).data() : parameters_[owner].gradient.data();
}

void Reducer::Impl::reset_sources() {
  sources_.assign(parameters_.size(), nullptr);
  for (const std::size_t owner : list_.owners()) sources_[owner] = own_memory(owner);
}

}  // namespace ddp
