// A backend plugin for CUDA tensors alone, which carries nothing.
#include <stdexcept>

#include <ddp/backend.hpp>

namespace {

class CudaOnly final : public ddp::Backend {
 public:
  CudaOnly() { traits_.serves_cuda = true; }
  const ddp::BackendTraits& traits() const noexcept override { return traits_; }
  ddp::Bytes address() const override { return {}; }
  void connect(const std::vector<ddp::Bytes>& /*unused*/, ddp::Deadline /*immediate*/) override {}
  ddp::Request& init(std::span<const ddp::Operation> /*unused*/, ddp::Deadline /*unused*/) override {
    throw std::logic_error("nobody is to use it");
  }
  void abort() noexcept override {}
  void close(ddp::Deadline /*immediate*/) noexcept override {}

 private:
  ddp::BackendTraits traits_;
};

std::unique_ptr<ddp::Backend> create(const ddp::BackendConfig& /*unused*/) { return std::make_unique<CudaOnly>(); }

}  // namespace

extern "C" const ddp::BackendPlugin ddp_backend_plugin;
const ddp::BackendPlugin ddp_backend_plugin{
    .version = ddp::kBackendVersion, .name = "test_cuda_only", .create = &create};
