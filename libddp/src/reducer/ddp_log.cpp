#include <ddp/ddp_log.hpp>

#include <string_view>

#include <fmt/format.h>

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
