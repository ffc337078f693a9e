#include "collectives/nccl/nccl_backend.hpp"
#include "base/message.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/env_table.hpp"
#include "base/host_name.hpp"
#include "base/log.hpp"
#include "collectives/nccl/device_executor.hpp"
#include "collectives/nccl/nccl_queue.hpp"
#include "collectives/nccl/rank_report.hpp"
#include "cuda/context.hpp"
#include "cuda/driver.hpp"

namespace ddp::collectives::nccl {
namespace {

// Collectives in streams are limited by memory only.
constexpr int kAnyNumber = 1 << 20;

/// As NCCL's envConfigOverride reads it (init.cc): it goes before the configuration, which asks not to block.
void warn_of_blocking(const BackendConfig& config) {
  const auto value = base::Environment::process().raw("NCCL_COMM_BLOCKING");
  if (config.rank != 0 || !value || std::strtoll(value->c_str(), nullptr, 0) != 1) return;
  base::log(
      base::LogLevel::warning,
      "group '{}': NCCL_COMM_BLOCKING={} makes NCCL block, so that deadlines do not hold while it connects; unset it",
      config.group, *value);
}

class NcclBackend final : public Backend {
 public:
  explicit NcclBackend(const BackendConfig& config)
      : config_(config),
        device_(choose_device(config, cuda::device_count())),  // first: it opens the driver only
        library_(NcclLibrary::process()),
        queue_(library_, device_, config.group),
        traits_{.serves_cpu = false,
                .serves_cuda = true,
                .completes_inline = false,
                .needs_progress = true,
                .stream_ordered = true,
                .detects_peer_death = false,
                .concurrent_collectives = kAnyNumber,
                .device = device_,
                .connects_by_barrier = base::Environment::process().text("DDP_NCCL_CONNECT") == "eager"} {
    traits_.splits = traits_.connects_by_barrier && base::Environment::process().boolean("DDP_NCCL_SPLIT");
    warn_of_blocking(config);
  }

  const BackendTraits& traits() const noexcept override { return traits_; }

  Bytes address() const override {
    const base::Environment environment = base::Environment::process();
    const cuda::DeviceFacts facts = cuda::device_facts(device_);
    RankReport report{.nccl_version = library_.version(),
                      .driver_version = cuda::driver().version(),
                      .may_share = library_.version() >= kSharedGpu &&
                                   environment.raw("NCCL_MULTI_RANK_GPU_ENABLE").value_or("0") == "1",
                      .compute_capability = facts.compute_major * 10 + facts.compute_minor,
                      .device = facts.uuid,
                      .host = base::host_name(),
                      .host_id = environment.raw("NCCL_HOSTID").value_or(""),
                      .process = ::getpid()};
    const std::vector<int> roots = this->roots();
    if (std::find(roots.begin(), roots.end(), config_.rank) != roots.end()) {
      const ncclResult_t result = library_->get_unique_id(&report.id.emplace());
      if (result != ncclSuccess) {
        throw Error{{.code = ErrorCode::unavailable,
                     .attempted = fmt::format("preparing NCCL for group '{}'", config_.group),
                     .cause = "no unique id: " + library_.last_error(nullptr),
                     .native = to_string(result),
                     .hint = "NCCL needs a network interface: see NCCL_SOCKET_IFNAME"}};
      }
    }
    return base::encode(report);
  }

  void connect(const std::vector<Bytes>& addresses, Deadline /*its first operation connects*/) override {
    std::vector<RankReport> reports;
    for (const Bytes& address : addresses) reports.push_back(base::decode<RankReport>(address));
    check_reports(reports, config_.group, config_.rank);
    if (!adds_float8(reports)) {
      traits_.no_float8_arithmetic = "NCCL adds 8-bit floating point from 2.24 on, and on GPUs of sm_90 and later";
    }
    std::vector<ncclUniqueId> ids;
    for (const int root : roots()) {
      const RankReport& report = reports[static_cast<std::size_t>(root)];
      if (!report.id) {
        throw Error{{.code = ErrorCode::protocol,
                     .attempted = fmt::format("preparing NCCL for group '{}'", config_.group),
                     .cause = fmt::format("rank {} sent no unique id", root),
                     .ranks = {root},
                     .hint = "do all ranks run the same version of libddp?"}};
      }
      ids.push_back(*report.id);
    }
    queue_.connect(std::move(ids), config_.size, config_.rank);
  }

  Request& init(std::span<const Operation> operations, Deadline deadline) override {
    return queue_.init(operations, deadline);
  }
  void order_captured(const Stream& captured, const Stream& stream) override {
    queue_.order_captured(static_cast<CUstream>(captured.handle), static_cast<CUstream>(stream.handle));
  }
  void split(Backend* child, int rank, Deadline deadline, const Pause& pause) override {
    queue_.split(child == nullptr ? nullptr : &static_cast<NcclBackend*>(child)->queue_, rank, deadline, pause);
  }
  std::shared_ptr<void> allocate(std::size_t bytes, Deadline deadline, const Pause& pause) override {
    return queue_.allocate(bytes, deadline, pause);
  }
  std::shared_ptr<TensorExecutor> make_executor(bool converts, Deadline deadline, const Pause& pause) override {
    return make_device_executor(device_, config_.group, converts, deadline, pause);
  }
  void abort() noexcept override { queue_.abort(); }
  void close(Deadline deadline) noexcept override { queue_.close(deadline); }

 private:
  std::vector<int> roots() const {
    if (config_.splits_off) return {};
    return bootstrap_roots(config_.size, library_.functions().comm_init_rank_scalable != nullptr);
  }

  const BackendConfig config_;
  const int device_;
  const NcclLibrary& library_;
  NcclQueue queue_;
  BackendTraits traits_;
};

}  // namespace

int choose_device(const BackendConfig& config, int visible) {
  if (config.device) return *config.device;
  if (visible == 1) return 0;
  const auto rank = static_cast<std::size_t>(config.rank);
  const int own = config.nodes.empty() ? 0 : config.nodes[rank];
  const auto count = [&](std::size_t ranks) {
    if (config.nodes.empty()) return static_cast<int>(ranks);
    return static_cast<int>(
        std::count(config.nodes.begin(), config.nodes.begin() + static_cast<std::ptrdiff_t>(ranks), own));
  };
  const int neighbours = count(static_cast<std::size_t>(config.size));
  if (neighbours <= visible) return count(rank);
  throw Error{{.code = ErrorCode::unavailable,
               .attempted = fmt::format("preparing NCCL for group '{}'", config.group),
               .cause = visible == 0 ? "this process sees no CUDA device"
                                     : fmt::format("{} ranks of this node see {} CUDA devices", neighbours, visible),
               .hint = "start at most one rank for each GPU, and look at CUDA_VISIBLE_DEVICES"}};
}

std::unique_ptr<Backend> create(const BackendConfig& config) { return std::make_unique<NcclBackend>(config); }

}  // namespace ddp::collectives::nccl
