// What a Reducer records about itself and its steps, under the names of PyTorch's DDP logging data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace ddp {

/// What a Reducer records, and what only its adapter knows.
struct DdpLogOptions {
  /// Runtime fields are recorded in steps 1 to 10, then in every sample_rate-th. At least 1.
  std::uint64_t sample_rate = 100;
  /// In those steps ranks exchange how long they waited: one more gather of 8 bytes. Equal on all ranks. Not supported
  /// for parameters on CUDA devices, where finalize does not wait.
  bool find_straggler = false;
  std::string module_name{};            ///< class of the module
  std::string device_ids{};             ///< "0", or empty
  int output_device = -1;               ///< -1: none
  bool is_multi_device_module = false;  ///< the module spans several devices
  bool has_sync_bn = false;             ///< the module has a SyncBatchNorm
  bool broadcast_buffers = true;        ///< buffers are broadcast before forward passes
};

/// The fields of PyTorch's `_get_ddp_logging_data`, under its names, and some of libddp's. Lists are separated by ", ".
/// Times and durations are in ns, times on a clock without epoch; 0: unknown. The JSON omits fields without a value.
struct DdpLog {
  /// @{
  /// Known at construction.
  std::int64_t world_size = 0;
  std::int64_t rank = 0;
  std::string module_name;
  std::int64_t iteration = 0;  ///< the step that the runtime fields describe; 0: none yet
  bool is_multi_device_module = false;
  std::int64_t num_parameter_tensors = 0;  ///< those that are averaged
  std::int64_t total_parameter_size_bytes = 0;
  std::string dtypes;
  std::string bucket_sizes;  ///< bytes, before buckets are rebuilt
  std::string device_ids;
  std::int64_t output_device = -1;
  bool broadcast_buffers = false;
  bool has_sync_bn = false;
  std::int64_t bucket_cap_bytes = 0;
  bool find_unused_parameters = false;
  bool gradient_as_bucket_view = false;
  std::string backend_name;
  std::optional<bool> static_graph;  ///< if set
  /// @}
  /// @{
  /// The environment variable of that name; "N/A" if unset.
  std::string master_addr;
  std::string master_port;
  std::string torch_distributed_debug;
  std::string cuda_visible_devices;
  std::optional<std::string> nccl_socket_ifname;  ///< this and those below: only for parameters on CUDA devices
  std::optional<std::string> nccl_blocking_wait;
  std::optional<std::string> nccl_async_error_handling;
  std::optional<std::string> nccl_debug;
  std::optional<std::string> nccl_nthreads;
  std::optional<std::string> nccl_ib_timeout;
  std::optional<std::string> gloo_socket_ifname;  ///< this and those below: only for parameters on the CPU
  std::optional<std::string> gloo_device_transport;
  std::optional<std::string> gloo_num_threads;
  /// @}
  /// @{
  /// From the last sampled step.
  std::int64_t unused_parameter_size = 0;  ///< bytes, on this rank
  std::int64_t num_buckets_reduced = 0;    ///< buckets that ranks exchanged; skip_all_reduce_unused leaves some out
  bool has_rebuilt_buckets = false;
  std::string rebuilt_bucket_sizes;
  std::string rebuilt_per_bucket_param_indices;         ///< "0 1, 2 3": separated by spaces within a bucket
  std::string prev_iteration_grad_ready_order_indices;  ///< of this rank
  std::int64_t forward_compute_time = 0;                ///< from start_forward() to prepare_for_backward()
  std::int64_t backward_compute_time = 0;               ///< prepare_for_backward() to finalize()
  /// From the first bucket's launch to the end of finalize(). This and all other communication times are unknown for
  /// parameters on CUDA devices, where finalize() does not wait.
  std::int64_t backward_comm_time = 0;
  std::int64_t backward_compute_comm_overlap_time = 0;
  std::int64_t avg_forward_compute_time = 0;  ///< over all sampled steps
  std::int64_t avg_backward_compute_time = 0;
  std::int64_t avg_backward_comm_time = 0;
  std::int64_t avg_backward_compute_comm_overlap_time = 0;
  std::int64_t forward_compute_time_start = 0;
  std::int64_t backward_compute_time_start = 0;
  std::int64_t backward_comm_time_start = 0;
  std::int64_t backward_compute_time_end = 0;
  std::int64_t backward_comm_time_end = 0;
  std::string comm_hook;
  bool join_uneven_inputs = false;
  bool can_set_static_graph = false;  ///< the set of unused parameters has not changed
  bool has_error = false;
  std::optional<std::string> error;  ///< the last one
  /// @}
  double hidden_communication_share = 0;  ///< overlap divided by communication; 0 to 1
  std::int64_t straggler_rank = -1;       ///< world rank that the others waited for most; -1: not requested, or CUDA
  std::int64_t straggler_delay = 0;       ///< by how much another rank's wait exceeded the straggler's
};

/// One JSON object, keyed by the fields' names. Booleans are 0 and 1.
std::string to_json(const DdpLog& log);
/// One human-readable line.
std::string summary(const DdpLog& log);

}  // namespace ddp
