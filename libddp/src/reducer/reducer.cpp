#include <algorithm>
#include <array>
#include <atomic>
#include <exception>
#include <filesystem>
#include <functional>
#include <utility>

#include <fmt/format.h>

#include <ddp/broadcast_coalesced.hpp>
#include <ddp/reducer.hpp>

#include "base/env_table.hpp"
#include "base/errors.hpp"
#include "base/files.hpp"
#include "base/log.hpp"
#include "reducer/bucket.hpp"
#include "reducer/options_check.hpp"
#include "reducer/reducer_impl.hpp"
#include "reducer/step_report.hpp"

namespace ddp {
namespace {

// After which steps of a program the file in DDP_TRACE_DIR is written: it need not end in order for that.
constexpr std::array<std::size_t, 3> kTraceWrites{5, 20, 50};

/// The file of this process's first Reducer; empty for others, and without DDP_TRACE_DIR.
std::string trace_file(const ProcessGroup& group) {
  static std::atomic<bool> taken{false};
  const std::string folder = base::Environment::process().text("DDP_TRACE_DIR");
  if (folder.empty() || taken.exchange(true)) return {};
  return fmt::format("{}/{}.json", folder, group.global_ranks()[static_cast<std::size_t>(group.rank())]);
}

/// Training goes on where it cannot be written.
bool write_trace(const std::string& path, const std::string& text) noexcept {
  try {
    std::filesystem::create_directories(std::filesystem::path(path).parent_path());
    base::NewFile file{path, 0666};
    file.write(text);
    file.commit();
    return true;
  } catch (const std::exception& error) {
    base::log(base::LogLevel::warning, "writing the trace that DDP_TRACE_DIR asks for: {}", error.what());
    return false;
  }
}

}  // namespace

Reducer::Impl::Impl(std::vector<Parameter> parameters, ProcessGroup group, ReducerOptions options)
    : parameters_(std::move(parameters)),
      options_(reducer::with_recorded_order(std::move(options))),
      group_(compare(std::move(group))),
      list_(parameters_, options_),
      check_(parameters_, options_, list_),
      marks_(list_.names()),
      sparse_(parameters_, list_.owners(), options_),
      used_(parameters_.size()),
      used_anywhere_(parameters_.size(), 1),
      buckets_(parameters_, options_),
      log_(parameters_, options_, list_) {
  if (options_.broadcast_parameters) {
    std::vector<TensorView> values;
    for (const Parameter& parameter : parameters_) values.push_back(parameter.value);
    broadcast_coalesced(group_, values, 0, options_.stream);
  }
  if (reducer::knows_counts(options_)) {
    marks_.accept_counts(options_.recorded_order->counts);
    asks_used_ = true;
  } else if (options_.static_graph) {
    marks_.count_only();
  }
  order_ = options_.ready_order.empty() ? std::vector<std::size_t>{} : list_.complete_order(options_.ready_order);
  make_buckets(initial_plan());
  log_.join_group(buckets_.plan());
  if (std::string file = trace_file(group_); !file.empty()) {
    trace(kTraceWrites.back());
    trace_file_ = std::move(file);
  }
}

void Reducer::Impl::prepare_for_backward(std::span<const std::size_t> unused) {
  constexpr auto kAttempted = "starting a backward pass";
  if (in_step_)
    base::throw_invalid_argument(kAttempted, "the last one was not finalized", "call finalize() after each");
  if (broken_) {
    base::throw_invalid_argument(kAttempted, "an earlier one has failed",
                                 "make a new one over a new group, on all ranks (in Python wrap the module again; in "
                                 "C++ change_group() is enough)");
  }
  check_.unused(unused);
  const bool synchronize = no_sync_depth_ == 0;
  if (join_ != nullptr) join_->announce(*this, synchronize ? JoinEvent::step : JoinEvent::local_step);
  if (synchronize && rebuild_due_) rebuild();
  if (synchronize && options_.skip_all_reduce_unused) reducer::agree_on_unused(group_, parameters_, unused);
  synchronize_ = synchronize;
  shadow_ = false;
  start_step(unused);
}

void Reducer::Impl::mark_ready(std::size_t index, const TensorView* gradient, const Stream* producer) {
  if (!in_step_.load(std::memory_order_acquire)) check_.throw_outside(index);
  const std::size_t owner = check_.owner_of(index, "marking a gradient ready");
  check_kind(owner, false, "marking");
  check_.gradient(index, own_memory(owner), gradient);
  if (producer != nullptr) check_.producer(index, *producer);
  accept_mark(index, owner, gradient != nullptr ? gradient->data() : own_memory(owner), producer);
}

void Reducer::Impl::mark_ready(std::size_t index, const SparseGradient& gradient, const Stream* producer) {
  if (!in_step_.load(std::memory_order_acquire)) check_.throw_outside(index);
  const std::size_t owner = check_.owner_of(index, "marking a gradient ready");
  check_kind(owner, true, "marking");
  sparse_.check(owner, gradient, "marking");
  if (producer != nullptr) check_.producer(index, *producer);
  accept_mark(index, owner, nullptr, nullptr);
  sparse_.place(owner, gradient, producer, device_.get());
}

void Reducer::Impl::check_kind(std::size_t owner, bool sparse, const char* attempted) const {
  if (sparse_.has(owner) == sparse) return;
  base::throw_invalid_argument(
      fmt::format("{} the gradient of '{}'", attempted, parameters_[owner].name),
      sparse ? "it is sparse, but its parameter's is dense" : "it is dense, but its parameter has sparse_gradient",
      "set Parameter::sparse_gradient on all ranks for a gradient of rows, else leave it off");
}

void Reducer::Impl::contribute(std::size_t owner, const void* gradient) {
  if (buckets_.exchanges() && !sparse_.has(owner)) buckets_.contribute(owner, gradient, group_);
}

void Reducer::Impl::accept_mark(std::size_t index, std::size_t owner, void* memory, const Stream* producer) {
  if (producer != nullptr) buckets_.wait_for_producer(owner, *producer);  // before the mark releases the bucket
  const bool several_marks = marks_.counting() || list_.names()[owner] > 1;
  const auto mark = several_marks ? mark_shared(owner, memory) : marks_.mark(owner);
  if (mark == ReadyMarks::Mark::excess) check_.throw_excess(index, marks_.needed(owner));
  used_[owner].store(true, std::memory_order_relaxed);
  if (noting_ && (marks_.counting() || mark == ReadyMarks::Mark::ready)) {
    const std::lock_guard lock(mutex_);
    arrivals_.push_back(owner);
  }
  if (mark == ReadyMarks::Mark::early) return;
  if (!several_marks) sources_[owner] = memory;
  if (synchronize_) contribute(owner, memory);
}

void Reducer::Impl::place_gradient(std::size_t index, const TensorView& gradient) {
  const std::size_t owner = check_.owner_of(index, "placing a gradient");
  check_kind(owner, false, "placing");
  check_.place(index, in_step_, gradient);
  sources_[owner] = gradient.data();
}

void Reducer::Impl::place_gradient(std::size_t index, const SparseGradient& gradient) {
  const std::size_t owner = check_.owner_of(index, "placing a gradient");
  check_kind(owner, true, "placing");
  sparse_.check(owner, gradient, "placing");
  sparse_.place(owner, gradient, nullptr, device_.get());
}

SparseGradient Reducer::Impl::sparse_average(std::size_t index) const {
  const std::size_t owner = check_.owner_of(index, "asking for a sparse average");
  check_kind(owner, true, "asking for");
  return sparse_.result(owner);
}

void Reducer::Impl::finalize() {
  if (!in_step_) {
    base::throw_invalid_argument("finalizing a backward pass", "none has been started",
                                 "call prepare_for_backward() first");
  }
  in_step_ = false;
  return synchronize_ ? finish_step(false) : finish_local_step();
}

bool Reducer::Impl::give_up() {
  if (!in_step_) return false;
  in_step_ = false;
  // Ranks that skip buckets have already agreed on them, and a Join has announced a step to its ranks.
  if (!synchronize_ || (!buckets_.has_launched() && join_ == nullptr && !options_.skip_all_reduce_unused)) {
    buckets_.abandon();
    for (auto& used : used_) used.store(used && accumulated_, std::memory_order_relaxed);
    reset_sources();
    sparse_.forget();
    return true;
  }
  try {
    finish_step(true);
  } catch (const Error&) {
    if (broken_) throw;  // otherwise this rank caused it
  }
  return false;
}

void Reducer::Impl::finish_step(bool given_up) {
  const auto finalize_called = Clock::now();
  broken_ = true;  // until the step is complete: ranks in different steps would average different buckets
  reducer::StepEnd end(options_.comm_hook.get(), buckets_);
  if (join_ != nullptr) join_->active();  // throws if other ranks take another step, and so never send their buckets
  const bool counting = marks_.counting();
  std::vector<std::size_t> missing;
  for (const std::size_t owner : list_.owners()) {
    if (!counting && marks_.complete(owner)) continue;
    missing.push_back(owner);
    contribute(owner, sources_[owner]);
  }
  const bool find_unused = counting || options_.find_unused_parameters;
  if (find_unused) missing.clear();
  if (buckets_.exchanges())
    buckets_.finish_launching(group_);  // rethrows an error of mark_ready() that the program ignored
  conclude(missing, find_unused || asks_used_, given_up);
  if (counting) end_counting();
  end.complete = true;
  record(finalize_called);
  broken_ = false;
}

void Reducer::Impl::finish_local_step() {
  broken_ = true;
  accumulated_ = true;
  try {
    buckets_.hand_over(sources_, group_);
    buckets_.hold_back_producers();
  } catch (...) {
    const reducer::StepEnd failed(options_.comm_hook.get(), buckets_);
    throw;
  }
  broken_ = false;
}

RecordedOrder Reducer::Impl::recorded_order() const {
  if (order_.empty() || marks_.counting()) {
    base::throw_invalid_argument("recording the order of gradients", "it is not known yet",
                                 "call it after the second step; with find_unused_parameters there is one of static "
                                 "graphs only");
  }
  RecordedOrder recorded{.parameters = reducer::recorded_names(parameters_), .order = order_};
  if (!options_.static_graph) return recorded;
  for (std::size_t i = 0; i < parameters_.size(); ++i) recorded.counts.push_back(marks_.needed(i));
  return recorded;
}

TensorView Reducer::Impl::bucket_view(std::size_t index) const {
  const std::size_t owner = check_.owner_of(index, "asking for a gradient's place in its bucket");
  check_kind(owner, false, "asking for the place of");
  return buckets_.has_memory() ? buckets_.view(owner) : parameters_[owner].gradient;
}

void Reducer::Impl::broadcast_buffers(std::span<const TensorView> buffers, int root) {
  if (!synchronize_) return;
  if (join_ != nullptr) {
    if (buffers.size() != join_buffers_.size()) {
      base::throw_invalid_argument("broadcasting buffers while ranks may run out of inputs",
                                   fmt::format("{} buffers, but {} are known", buffers.size(), join_buffers_.size()),
                                   "give them to joinable(), too: ranks that have run out need theirs");
    }
    join_->announce(*this, JoinEvent::buffers);
    root = join_->highest_active();
  }
  broadcast_coalesced(group_, buffers, root, options_.stream);
}

void Reducer::Impl::change_group(ProcessGroup group) {
  if (join_ != nullptr) {
    base::throw_invalid_argument("changing a Reducer's group", "a Join of its ranks has not ended", "end it before");
  }
  if (broken_ || in_step_) {
    for (auto& used : used_) used.store(false, std::memory_order_relaxed);  // gradients are meaningless
    sparse_.forget();
  }
  abandon_step();
  group_ = compare(std::move(group));
  broken_ = false;
  synchronize_ = true;
  accumulated_ = true;
  // Survivors of a failure may have ended the first step at different points, and other ranks may use other parameters.
  if (options_.static_graph) marks_.count_only();
  asks_used_ = false;
  used_anywhere_.assign(parameters_.size(), 1);
  rebuilt_ = false;
  rebuild_due_ = false;
  make_buckets(initial_plan());
  log_.join_group(buckets_.plan());
}

std::vector<bool> Reducer::Impl::mark_unused_names(std::span<const std::size_t> unused) {
  const std::vector<std::uint32_t> names = list_.names_in(unused);
  std::vector<bool> all(parameters_.size());
  for (const std::size_t owner : list_.owners()) {
    all[owner] = names[owner] == list_.names()[owner];
    if (all[owner] || options_.static_graph) continue;
    for (std::uint32_t i = 0; i < names[owner]; ++i) marks_.mark(owner);
  }
  return all;
}

Reducer::Impl::ReadyMarks::Mark Reducer::Impl::mark_shared(std::size_t owner, void* memory) {
  const std::lock_guard lock(mutex_);
  const auto mark = marks_.mark(owner);
  if (mark != ReadyMarks::Mark::excess) sources_[owner] = memory;
  return mark;
}

void Reducer::Impl::start_step(std::span<const std::size_t> unused) {
  marks_.start_step();
  recording_ = synchronize_ && !rebuilt_ && reducer::rebuilds(options_);
  noting_ = recording_ || (synchronize_ && log_.samples());
  if (noting_) arrivals_.clear();
  backward_started_ = Clock::now();
  std::vector<bool> idle = mark_unused_names(unused);
  // Ranks have agreed on these gradients only; those from steps of no_sync must be averaged whatever follows.
  const bool few = join_ != nullptr && !join_->options().divide_by_initial_world_size && synchronize_;
  divisor_ = few ? join_->active() : group_.size();
  buckets_.start_step(accumulated_ ? std::vector<bool>(parameters_.size()) : idle, divisor_);
  const bool counting = marks_.counting();
  for (const std::size_t owner : list_.owners()) {
    if (!counting && marks_.needed(owner) == 0) idle[owner] = true;
  }
  in_step_ = true;
  if (!synchronize_ || counting) return;
  for (const std::size_t owner : list_.owners()) {
    if (!idle[owner]) continue;
    marks_.close(owner);
    contribute(owner, sources_[owner]);
  }
}

void Reducer::Impl::conclude(const std::vector<std::size_t>& missing, bool find_unused, bool given_up) {
  std::vector<std::uint8_t> used(find_unused ? parameters_.size() : 0);
  bool all_used = true;
  if (find_unused) {
    for (const std::size_t owner : list_.owners()) used[owner] = used_[owner] ? 1 : 0;
    if (!shadow_) log_.note_used(used);
    for (const std::size_t owner : list_.owners()) {
      if (options_.write_unused) used[owner] = 1;
      all_used = all_used && used[owner] != 0;
    }
    used_anywhere_ = used;
  }
  bool misses = given_up || !missing.empty();
  const bool several = group_.size() > 1;
  if (several) report_.send(group_, misses, used);
  sparse_.average(group_, divisor_, device_);
  const auto read_report = [&] {
    if (!several) return;
    report_.wait();
    misses = report_.misses_gradients();
    for (std::size_t i = 0; i < used.size(); ++i) used_anywhere_[i] = report_.used(i) ? 1 : 0;
  };
  // A gradient that no rank used stays unchanged, so the report must be read first.
  if (!all_used) read_report();
  if (buckets_.exchanges()) {
    for (std::size_t bucket = 0; bucket < buckets_.plan().size(); ++bucket) {
      buckets_.wait(bucket, group_);
      if (!misses) buckets_.copy_out(bucket, sources_, used_anywhere_, group_);
    }
    buckets_.hold_back_producers();
  }
  if (all_used) read_report();
  for (const std::size_t owner : list_.owners()) used_[owner].store(false, std::memory_order_relaxed);
  reset_sources();
  sparse_.forget();
  accumulated_ = false;
  if (misses) {
    broken_ = false;  // every rank stops here
    reducer::throw_missing(group_, given_up ? reducer::kGivenUp : reducer::describe_missing(parameters_, missing),
                           reducer::missing_hint(options_));
  }
  asks_used_ = false;
}

void Reducer::Impl::record(Clock::time_point finalize_called) {
  ++stats_.iteration;
  rebuild_due_ = recording_;
  recording_ = false;
  stats_.backward = finalize_called - backward_started_;
  const auto launched = buckets_.first_launch();
  const bool timed = buckets_.exchanges() && list_.on_cpu();  // on a device the host does not see when buckets end
  if (timed) {
    stats_.communication = buckets_.last_finish() - launched;
    stats_.overlap = std::max<Clock::duration>(std::min(buckets_.last_finish(), finalize_called) - launched, {});
  }
  log_.finish_step({.iteration = stats_.iteration,
                    .times = {.backward_start = backward_started_,
                              .backward_end = finalize_called,
                              .first_launch = launched,
                              .last_finish = buckets_.last_finish(),
                              .end = Clock::now()},
                    .timed = timed,
                    .buckets = buckets_.exchanged(),
                    .rebuilt = rebuilt_,
                    .joined = join_ != nullptr,
                    .shadow = shadow_},
                   buckets_.plan(), arrivals_, group_);
  const auto forward = std::exchange(forward_started_, {});
  if (!trace_ || trace_->full()) return;
  std::vector<std::size_t> bytes;
  for (const auto& bucket : buckets_.plan()) {
    std::size_t all = 0;
    for (const std::size_t parameter : bucket) all += parameters_[parameter].value.size_bytes();
    bytes.push_back(all);
  }
  trace_->finish_step(
      stats_.iteration, buckets_.plan(),
      {.forward = forward, .backward = backward_started_, .backward_end = finalize_called, .end = Clock::now()},
      std::move(bytes));
  if (trace_->full()) buckets_.set_trace(nullptr);
  const bool due = std::ranges::find(kTraceWrites, trace_->num_steps()) != kTraceWrites.end();
  if (due && !trace_file_.empty() && !write_trace(trace_file_, trace_->json())) trace_file_.clear();
}

void Reducer::Impl::trace(std::size_t steps) {
  if (in_step_) base::throw_invalid_argument("tracing buckets", "a step has not been finalized", "call it before one");
  trace_file_.clear();  // the program's own trace, from here on
  trace_.emplace(steps, group_.global_ranks()[static_cast<std::size_t>(group_.rank())]);
  buckets_.set_trace(steps > 0 ? &*trace_ : nullptr);
}

// A Reducer's buckets: which parameters they hold, in which group, and where gradients are.

ProcessGroup Reducer::Impl::compare(ProcessGroup group) {
  std::optional<Error> fault;  // the other ranks may have no fault, and must not wait for this one
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
  // Programs usually list parameters in forward order; their gradients arrive in reverse.
  reducer::BucketPlan plan = plan_of(list_.owners(), false);
  std::ranges::sort(plan, std::greater<>{}, [](const auto& bucket) { return bucket.front(); });
  return with_delayed(std::move(plan), list_.owners());
}

void Reducer::Impl::rebuild() {
  if (join_ != nullptr) join_->active();  // throws if other ranks take another step, and so do not rebuild
  std::vector<std::size_t> own = list_.complete_order(arrivals_);
  // This rank has taken no step: programs usually list parameters in forward order.
  if (arrivals_.empty()) std::ranges::reverse(own);
  const auto order = std::make_shared<std::vector<std::int64_t>>(own.begin(), own.end());
  group_.broadcast(*order, 0, {{}, order}).wait_watched();
  order_.assign(order->begin(), order->end());
  rebuilt_ = true;
  rebuild_due_ = false;
  auto plan = plan_of(order_);
  if (plan == buckets_.plan()) return;
  // Gradients placed for the step that begins stay, null ones included; those in the buckets move.
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

// The public calls of a Reducer; its log records their errors.

Reducer::Reducer(std::vector<Parameter> parameters, ProcessGroup group, ReducerOptions options)
    : impl_(std::make_unique<Impl>(std::move(parameters), std::move(group), std::move(options))) {}
Reducer::Reducer(Reducer&&) noexcept = default;
Reducer& Reducer::operator=(Reducer&&) noexcept = default;
Reducer::~Reducer() = default;

void Reducer::prepare_for_backward(std::span<const std::size_t> unused) {
  impl_->note_error([&] { impl_->prepare_for_backward(unused); });
}
void Reducer::mark_ready(std::size_t index) {
  impl_->note_error([&] { impl_->mark_ready(index, nullptr, nullptr); });
}
void Reducer::mark_ready(std::size_t index, const Stream& producer) {
  impl_->note_error([&] { impl_->mark_ready(index, nullptr, &producer); });
}
void Reducer::mark_ready(std::size_t index, const TensorView& gradient) {
  impl_->note_error([&] { impl_->mark_ready(index, &gradient, nullptr); });
}
void Reducer::mark_ready(std::size_t index, const TensorView& gradient, const Stream& producer) {
  impl_->note_error([&] { impl_->mark_ready(index, &gradient, &producer); });
}
void Reducer::mark_ready(std::size_t index, const SparseGradient& gradient) {
  impl_->note_error([&] { impl_->mark_ready(index, gradient, nullptr); });
}
void Reducer::mark_ready(std::size_t index, const SparseGradient& gradient, const Stream& producer) {
  impl_->note_error([&] { impl_->mark_ready(index, gradient, &producer); });
}
void Reducer::place_gradient(std::size_t index, const TensorView& gradient) {
  impl_->note_error([&] { impl_->place_gradient(index, gradient); });
}
void Reducer::place_gradient(std::size_t index, const SparseGradient& gradient) {
  impl_->note_error([&] { impl_->place_gradient(index, gradient); });
}
bool Reducer::give_up() {
  bool repeats = false;
  impl_->note_error([&] { repeats = impl_->give_up(); });
  return repeats;
}
SparseGradient Reducer::sparse_average(std::size_t index) const { return impl_->sparse_average(index); }
void Reducer::finalize() {
  impl_->note_error([&] { impl_->finalize(); });
}
Reducer::NoSync Reducer::no_sync() { return impl_->no_sync(); }
TensorView Reducer::bucket_view(std::size_t index) const { return impl_->bucket_view(index); }
bool Reducer::used(std::size_t index) const { return impl_->used(index); }
void Reducer::broadcast_buffers(std::span<const TensorView> buffers, int root) {
  impl_->note_error([&] { impl_->broadcast_buffers(buffers, root); });
}
void Reducer::change_group(ProcessGroup group) {
  impl_->note_error([&] { impl_->change_group(std::move(group)); });
}
const std::vector<std::vector<std::size_t>>& Reducer::buckets() const noexcept { return impl_->plan(); }
const std::vector<std::size_t>& Reducer::ready_order() const noexcept { return impl_->order(); }
RecordedOrder Reducer::recorded_order() const { return impl_->recorded_order(); }
const ReducerStats& Reducer::stats() const noexcept { return impl_->stats(); }
void Reducer::start_forward() { impl_->start_forward(); }
DdpLog Reducer::log() const { return impl_->read_log(); }
void Reducer::trace(std::size_t steps) { impl_->trace(steps); }
std::string Reducer::trace_json() const { return impl_->trace_json(); }
Joinable& Reducer::joinable(std::vector<TensorView> buffers) {
  impl_->set_join_buffers(std::move(buffers));
  return *impl_;
}

}  // namespace ddp
