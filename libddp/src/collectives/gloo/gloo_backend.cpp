// The plugin libddp_gloo.so: collectives among CPUs over TCP.
#include "collectives/backend.hpp"
#include "collectives/gloo/gloo_mesh.hpp"
#include "collectives/gloo/gloo_operations.hpp"

namespace ddp::collectives::gloo_backend {
namespace {

class GlooBackend final : public Backend {
 public:
  explicit GlooBackend(const BackendConfig& config) : mesh_(std::make_shared<GlooMesh>(config)) {}

  bool serves(DeviceType device) const noexcept override { return device == DeviceType::cpu; }
  Bytes address() const override { return mesh_->address(); }
  void connect(const std::vector<Bytes>& addresses, Deadline deadline) override { mesh_->connect(addresses, deadline); }
  void run(const Operation& operation, Deadline deadline) override { run_collective(mesh_, operation, deadline); }
  std::unique_ptr<Transfer> start(const Operation& operation) override { return start_transfer(mesh_, operation); }
  void abort() noexcept override { mesh_->abort(); }

 private:
  std::shared_ptr<GlooMesh> mesh_;
};

std::unique_ptr<Backend> create(const BackendConfig& config) { return std::make_unique<GlooBackend>(config); }

}  // namespace
}  // namespace ddp::collectives::gloo_backend

extern "C" const ddp::collectives::BackendPlugin ddp_backend_plugin{
    .interface_version = ddp::collectives::kBackendInterfaceVersion,
    .name = "gloo",
    .create = &ddp::collectives::gloo_backend::create};
