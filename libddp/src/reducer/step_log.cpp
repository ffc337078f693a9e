#include "reducer/step_log.hpp"

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "flight/flight_memory.hpp"
#include "reducer/options_check.hpp"

namespace ddp::reducer {
namespace {

std::int64_t nanoseconds(StepLog::Time from, StepLog::Time to) {
  return std::max<std::int64_t>(0, std::chrono::nanoseconds(to - from).count());
}
std::int64_t nanoseconds(StepLog::Time time) { return nanoseconds({}, time); }

/// Updates @p mean with the @p count-th value.
void average(std::int64_t& mean, std::int64_t value, std::int64_t count) { mean += (value - mean) / count; }

}  // namespace

std::string StepLog::sizes_of(const BucketPlan& plan) const {
  std::vector<std::size_t> sizes;
  for (const auto& bucket : plan) {
    std::size_t bytes = 0;
    for (const std::size_t index : bucket) bytes += parameters_[index].value.size_bytes();
    sizes.push_back(bytes);
  }
  return fmt::format("{}", fmt::join(sizes, ", "));
}

void StepLog::join_group(const BucketPlan& plan) {
  steps_ = 0;
  used_.clear();
  used_changed_ = false;
  last_.bucket_sizes = sizes_of(plan);
}

void StepLog::note_used(const std::vector<std::uint8_t>& used) {
  used_changed_ = used_changed_ || (!used_.empty() && used_ != used);
  used_ = used;
}

void StepLog::note_error(std::string text) {
  const std::lock_guard lock(mutex_);
  error_ = std::move(text);
}

void StepLog::finish_step(const Sample& sample, const BucketPlan& plan, std::span<const std::size_t> arrivals,
                          ProcessGroup& group) {
  looked_ = false;
  note(sample, plan, arrivals, group);
  if (!sample.shadow) publish(sample);
}

void StepLog::publish(const Sample& sample) {
  const Times& times = sample.times;
  flight::FlightStep step{.duration = times.end - last_end_.value_or(times.backward_start)};
  last_end_ = times.end;
  if (sample.timed) {
    step.communication = times.last_finish - times.first_launch;
    step.hidden = std::min(times.last_finish, times.backward_end) - times.first_launch;
  }
  if (looked_) {
    step.straggler_rank = static_cast<int>(last_.straggler_rank);
    step.straggler_delay = std::chrono::nanoseconds(last_.straggler_delay);
  }
  flight::note_step(step);
}

void StepLog::note(const Sample& sample, const BucketPlan& plan, std::span<const std::size_t> arrivals,
                   ProcessGroup& group) {
  const bool sampled = samples();
  ++steps_;
  const auto forward_start = std::exchange(forward_start_, std::nullopt);
  if (!sampled) return;
  const bool finds_straggler = options_.log.find_straggler && list_.on_cpu();  // on a device the host does not wait
  last_.join_uneven_inputs = last_.join_uneven_inputs || sample.joined;
  if (sample.shadow) {
    if (finds_straggler) find_straggler(std::nullopt, group);
    return;
  }
  const Times& times = sample.times;
  const auto finish = std::max(times.last_finish, times.first_launch);
  last_.iteration = static_cast<std::int64_t>(sample.iteration);
  last_.num_buckets_reduced = static_cast<std::int64_t>(sample.buckets);
  last_.has_rebuilt_buckets = sample.rebuilt;
  last_.rebuilt_bucket_sizes.clear();
  last_.rebuilt_per_bucket_param_indices.clear();
  if (sample.rebuilt) {
    std::vector<std::string> buckets;
    for (const auto& bucket : plan) buckets.push_back(fmt::format("{}", fmt::join(bucket, " ")));
    last_.rebuilt_per_bucket_param_indices = fmt::format("{}", fmt::join(buckets, ", "));
    last_.rebuilt_bucket_sizes = sizes_of(plan);
  }
  last_.prev_iteration_grad_ready_order_indices = fmt::format("{}", fmt::join(arrivals, ", "));
  last_.unused_parameter_size = 0;
  for (const std::size_t owner : list_.owners()) {
    if (owner >= used_.size() || used_[owner] != 0) continue;
    last_.unused_parameter_size += static_cast<std::int64_t>(parameters_[owner].value.size_bytes());
  }
  last_.forward_compute_time_start = forward_start ? nanoseconds(*forward_start) : 0;
  last_.forward_compute_time = forward_start ? nanoseconds(*forward_start, times.backward_start) : 0;
  last_.backward_compute_time_start = nanoseconds(times.backward_start);
  last_.backward_compute_time_end = nanoseconds(times.backward_end);
  last_.backward_compute_time = nanoseconds(times.backward_start, times.backward_end);
  last_.backward_comm_time_start = sample.timed ? nanoseconds(times.first_launch) : 0;
  last_.backward_comm_time_end = sample.timed ? nanoseconds(times.end) : 0;
  last_.backward_comm_time = sample.timed ? nanoseconds(times.first_launch, times.end) : 0;
  last_.backward_compute_comm_overlap_time = sample.timed ? nanoseconds(times.first_launch, times.backward_end) : 0;
  const std::int64_t exchange = sample.timed ? nanoseconds(times.first_launch, finish) : 0;
  const std::int64_t hidden = nanoseconds(times.first_launch, std::min(finish, times.backward_end));
  last_.hidden_communication_share = exchange == 0 ? 0 : static_cast<double>(hidden) / static_cast<double>(exchange);
  ++sampled_;
  average(last_.avg_forward_compute_time, last_.forward_compute_time, sampled_);
  average(last_.avg_backward_compute_time, last_.backward_compute_time, sampled_);
  average(last_.avg_backward_comm_time, last_.backward_comm_time, sampled_);
  average(last_.avg_backward_compute_comm_overlap_time, last_.backward_compute_comm_overlap_time, sampled_);
  last_.can_set_static_graph = !used_changed_;
  if (finds_straggler) find_straggler(nanoseconds(times.backward_end, finish), group);
}

void StepLog::find_straggler(std::optional<std::int64_t> waited, ProcessGroup& group) {
  std::vector<std::int64_t> own{waited.value_or(-1)};
  std::vector<std::int64_t> all(static_cast<std::size_t>(group.size()));
  group.all_gather(own, all).wait();
  // the last rank to come waited least; hosts' clocks need not agree
  std::optional<std::size_t> last;
  std::int64_t most = 0;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] < 0) continue;
    if (!last || all[rank] < all[*last]) last = rank;
    most = std::max(most, all[rank]);
  }
  if (!last) return;
  last_.straggler_rank = group.global_ranks()[*last];
  last_.straggler_delay = most - all[*last];
  looked_ = true;
}

DdpLog StepLog::read(const ProcessGroup& group) const {
  const auto variable = [](const char* name) {
    const char* const value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nothing here changes it
    return std::string(value == nullptr ? "N/A" : value);
  };
  DdpLog log = last_;
  log.world_size = group.size();
  log.rank = group.rank();
  log.module_name = options_.log.module_name;
  log.is_multi_device_module = options_.log.is_multi_device_module;
  std::vector<std::string_view> types;
  for (const std::size_t owner : list_.owners()) {
    const TensorView& value = parameters_[owner].value;
    ++log.num_parameter_tensors;
    log.total_parameter_size_bytes += static_cast<std::int64_t>(value.size_bytes());
    if (std::ranges::find(types, to_string(value.dtype())) == types.end()) types.push_back(to_string(value.dtype()));
  }
  log.dtypes = fmt::format("{}", fmt::join(types, ", "));
  log.device_ids = options_.log.device_ids;
  log.output_device = options_.log.output_device;
  log.broadcast_buffers = options_.log.broadcast_buffers;
  log.has_sync_bn = options_.log.has_sync_bn;
  log.bucket_cap_bytes = static_cast<std::int64_t>(std::ranges::max(bucket_limits(options_)));
  log.find_unused_parameters = options_.find_unused_parameters;
  log.gradient_as_bucket_view = options_.gradient_as_bucket_view;
  log.backend_name = list_.on_cpu() ? group.backend() : "nccl";
  if (options_.static_graph) log.static_graph = true;
  log.master_addr = variable("MASTER_ADDR");
  log.master_port = variable("MASTER_PORT");
  log.torch_distributed_debug = variable("TORCH_DISTRIBUTED_DEBUG");
  log.cuda_visible_devices = variable("CUDA_VISIBLE_DEVICES");
  if (list_.on_cpu()) {
    log.gloo_socket_ifname = variable("GLOO_SOCKET_IFNAME");
    log.gloo_device_transport = variable("GLOO_DEVICE_TRANSPORT");
    log.gloo_num_threads = "N/A";  // one progress thread for all groups
  } else {
    log.nccl_socket_ifname = variable("NCCL_SOCKET_IFNAME");
    log.nccl_blocking_wait = variable("TORCH_NCCL_BLOCKING_WAIT");
    log.nccl_async_error_handling = variable("TORCH_NCCL_ASYNC_ERROR_HANDLING");
    log.nccl_debug = variable("NCCL_DEBUG");
    log.nccl_nthreads = variable("NCCL_NTHREADS");
    log.nccl_ib_timeout = variable("NCCL_IB_TIMEOUT");
  }
  if (options_.comm_hook) log.comm_hook = options_.comm_hook->name();
  const std::lock_guard lock(mutex_);
  log.has_error = !error_.empty();
  if (log.has_error) log.error = error_;
  return log;
}

}  // namespace ddp::reducer

namespace ddp {
namespace {

std::string json_of(std::string_view text) {
  std::string quoted = "\"";
  for (const char each : text) {
    if (each == '"' || each == '\\') {
      quoted += '\\';
      quoted += each;
    } else if (static_cast<unsigned char>(each) < 0x20) {
      quoted += fmt::format("\\u{:04x}", static_cast<unsigned char>(each));
    } else {
      quoted += each;
    }
  }
  return quoted + '"';
}
std::string json_of(bool value) { return value ? "1" : "0"; }
std::string json_of(std::int64_t value) { return std::to_string(value); }
std::string json_of(double value) { return fmt::format("{:.4f}", value); }

class LogFields {
 public:
  template <class T>
  LogFields& operator()(std::string_view name, const T& value) {
    text_ += fmt::format("{}\"{}\": {}", text_.empty() ? "" : ", ", name, json_of(value));
    return *this;
  }
  template <class T>
  LogFields& operator()(std::string_view name, const std::optional<T>& value) {
    return value ? (*this)(name, *value) : *this;
  }
  std::string object() const { return "{" + text_ + "}"; }

 private:
  std::string text_;
};

double milliseconds(std::int64_t nanoseconds) { return static_cast<double>(nanoseconds) / 1e6; }

}  // namespace

std::string to_json(const DdpLog& log) {
  LogFields fields;
#define DDP_FIELD(name) (#name, log.name)
  // clang-format off
  fields DDP_FIELD(world_size) DDP_FIELD(rank) DDP_FIELD(module_name) DDP_FIELD(iteration)
      DDP_FIELD(is_multi_device_module) DDP_FIELD(num_parameter_tensors) DDP_FIELD(total_parameter_size_bytes)
      DDP_FIELD(dtypes) DDP_FIELD(bucket_sizes) DDP_FIELD(device_ids) DDP_FIELD(output_device)
      DDP_FIELD(broadcast_buffers) DDP_FIELD(has_sync_bn) DDP_FIELD(bucket_cap_bytes) DDP_FIELD(find_unused_parameters)
      DDP_FIELD(gradient_as_bucket_view) DDP_FIELD(backend_name) DDP_FIELD(static_graph) DDP_FIELD(master_addr)
      DDP_FIELD(master_port) DDP_FIELD(torch_distributed_debug) DDP_FIELD(cuda_visible_devices)
      DDP_FIELD(nccl_socket_ifname) DDP_FIELD(nccl_blocking_wait) DDP_FIELD(nccl_async_error_handling)
      DDP_FIELD(nccl_debug) DDP_FIELD(nccl_nthreads) DDP_FIELD(nccl_ib_timeout) DDP_FIELD(gloo_socket_ifname)
      DDP_FIELD(gloo_device_transport) DDP_FIELD(gloo_num_threads) DDP_FIELD(unused_parameter_size)
      DDP_FIELD(num_buckets_reduced) DDP_FIELD(has_rebuilt_buckets) DDP_FIELD(rebuilt_bucket_sizes) DDP_FIELD(rebuilt_per_bucket_param_indices)
      DDP_FIELD(prev_iteration_grad_ready_order_indices) DDP_FIELD(forward_compute_time)
      DDP_FIELD(backward_compute_time) DDP_FIELD(backward_comm_time) DDP_FIELD(backward_compute_comm_overlap_time)
      DDP_FIELD(avg_forward_compute_time) DDP_FIELD(avg_backward_compute_time) DDP_FIELD(avg_backward_comm_time)
      DDP_FIELD(avg_backward_compute_comm_overlap_time) DDP_FIELD(forward_compute_time_start)
      DDP_FIELD(backward_compute_time_start) DDP_FIELD(backward_comm_time_start) DDP_FIELD(backward_compute_time_end)
      DDP_FIELD(backward_comm_time_end) DDP_FIELD(comm_hook) DDP_FIELD(join_uneven_inputs)
      DDP_FIELD(can_set_static_graph) DDP_FIELD(has_error) DDP_FIELD(error) DDP_FIELD(hidden_communication_share)
      DDP_FIELD(straggler_rank) DDP_FIELD(straggler_delay);
  // clang-format on
#undef DDP_FIELD
  return fields.object();
}

std::string summary(const DdpLog& log) {
  std::string text = fmt::format(
      "{}step {}, rank {} of {}: forward {:.3f} ms, backward {:.3f} ms, communication {:.3f} ms, {:.0f} % hidden",
      log.module_name.empty() ? "" : log.module_name + ": ", log.iteration, log.rank, log.world_size,
      milliseconds(log.forward_compute_time), milliseconds(log.backward_compute_time),
      milliseconds(log.backward_comm_time), 100 * log.hidden_communication_share);
  text += fmt::format("; buckets of {} bytes over {}",
                      log.has_rebuilt_buckets ? log.rebuilt_bucket_sizes : log.bucket_sizes, log.backend_name);
  if (!log.comm_hook.empty()) text += fmt::format(", {}", log.comm_hook);
  if (log.straggler_rank >= 0) {
    text += fmt::format("; rank {} came last, {:.3f} ms after another", log.straggler_rank,
                        milliseconds(log.straggler_delay));
  }
  if (log.error) text += fmt::format("; last error: {}", *log.error);
  return text;
}

}  // namespace ddp
