// The plugin libddp_gloo.so: collectives among CPUs over TCP.
#include "collectives/gloo/gloo_operations.hpp"
#include "collectives/gloo/gloo_worker.hpp"

namespace ddp::collectives::gloo_backend {
namespace {

class GlooBackend final : public Backend {
 public:
  explicit GlooBackend(const BackendConfig& config)
      : mesh_(std::make_shared<GlooMesh>(config)), worker_(std::make_unique<GlooWorker>(mesh_)) {}

  const BackendTraits& traits() const noexcept override {
    static constexpr BackendTraits kTraits{.serves_cpu = true,
                                           .serves_cuda = false,
                                           .completes_inline = false,
                                           .needs_progress = false,
                                           .stream_ordered = false,
                                           .detects_peer_death = true,
                                           .concurrent_collectives = 1};
    return kTraits;
  }
  Bytes address() const override { return mesh_->address(); }
  void connect(const std::vector<Bytes>& addresses, Deadline deadline) override { mesh_->connect(addresses, deadline); }
  Request& init(std::span<const Operation> operations, Deadline deadline) override {
    return worker_->init(operations, deadline);
  }
  void abort() noexcept override { worker_->abort(); }
  void close(Deadline /*none is under way*/) noexcept override { worker_.reset(); }
  void rest(std::chrono::microseconds limit) noexcept override { worker_->rest(limit); }

 private:
  std::shared_ptr<GlooMesh> mesh_;
  std::unique_ptr<GlooWorker> worker_;
};

std::unique_ptr<Backend> create(const BackendConfig& config) { return std::make_unique<GlooBackend>(config); }

}  // namespace
}  // namespace ddp::collectives::gloo_backend

extern "C" const ddp::BackendPlugin ddp_backend_plugin{
    .version = ddp::kBackendVersion, .name = "gloo", .create = &ddp::collectives::gloo_backend::create};
