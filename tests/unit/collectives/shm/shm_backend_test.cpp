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

TEST(ShmMessages, AMismatchEndsNothingThatIsComplete) {
  BackendRanks group(Subject{.name = "Three", .create = plain, .size = 3});
  const auto send = [&](int rank) {
    const Message message(OperationKind::send, 0, 1, 3, 1);
    EXPECT_EQ(run(group.at(rank), message.operation()).outcome, Outcome::ok);
  };
  send(1);
  send(2);
  const Message fits(OperationKind::recv, 1, 1, 3, 1);
  const Message differs(OperationKind::recv, 2, 1, 5, 1);
  const Operation first = fits.operation();
  const Operation second = differs.operation();
  const std::array requests{&group.at(0).init({&first, 1}, soon()), &group.at(0).init({&second, 1}, soon())};
  const std::vector<Ended> ends = drive(group.at(0), requests);
  EXPECT_EQ(ends[0].outcome, Outcome::ok) << ends[0].failure.cause;
  EXPECT_EQ(ends[1].outcome, Outcome::mismatch);
}

}  // namespace
}  // namespace ddp::collectives::testing
