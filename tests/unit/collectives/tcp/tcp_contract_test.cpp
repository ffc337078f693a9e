// The TCP backend as every backend: ranks as threads, over loopback.
#include "collectives/tcp/tcp_backend.hpp"
#include "unit/collectives/backend_transfer_contract.hpp"

namespace ddp::collectives::testing {
namespace {

Subject subject(int size) {
  return {.name = "Tcp" + std::to_string(size),
          .create = [](const BackendConfig& config) { return tcp::make_backend(config); },
          .size = size,
          .many = 300};
}

INSTANTIATE_TEST_SUITE_P(Tcp, BackendContract, ::testing::Values(subject(2), subject(3)), subject_name);

}  // namespace
}  // namespace ddp::collectives::testing
