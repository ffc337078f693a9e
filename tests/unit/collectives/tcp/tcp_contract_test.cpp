// The TCP backend as every backend: ranks as threads, over loopback.
#include "collectives/tcp/tcp_backend.hpp"
#include "unit/collectives/backend_transfer_contract.hpp"

namespace ddp::collectives::testing {
namespace {

/// Numbers of collectives and of announced messages go on from @p first_ordinal.
Subject subject(int size, std::uint64_t first_ordinal) {
  return {.name = "Tcp" + std::to_string(size),
          .create = [=](const BackendConfig& config) { return tcp::make_backend(config, first_ordinal); },
          .size = size,
          .many = 300};
}

INSTANTIATE_TEST_SUITE_P(Tcp, BackendContract,
                         ::testing::Values(subject(2, (std::uint64_t{1} << 32U) - 16),
                                           subject(3, std::uint64_t{0} - 16)),
                         subject_name);

}  // namespace
}  // namespace ddp::collectives::testing
