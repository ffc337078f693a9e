// The backend of ranks that share memory, as every backend.
#include "collectives/shm/shm_backend.hpp"

#include "unit/collectives/backend_transfer_contract.hpp"

namespace ddp::collectives::testing {
namespace {

std::unique_ptr<Backend> plain(const BackendConfig& config) { return shm::create(config); }

/// Step numbers and ring positions pass @p wrap.
std::function<std::unique_ptr<Backend>(const BackendConfig&)> starting_at(std::uint64_t first_step) {
  return [=](const BackendConfig& config) { return shm::create(config, shm::Endpoint{}, {.first_step = first_step}); };
}

INSTANTIATE_TEST_SUITE_P(
    Shm, BackendContract,
    ::testing::Values(
        Subject{.name = "Two", .create = plain, .size = 2},
        Subject{.name = "Four", .create = starting_at((std::uint64_t{1} << 32U) - 16), .size = 4, .many = 1500},
        Subject{.name = "Five", .create = starting_at(std::uint64_t{0} - 16), .size = 5, .many = 1000}),
    subject_name);

}  // namespace
}  // namespace ddp::collectives::testing
