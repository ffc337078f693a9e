// The conformance suite of backends, for the CPU backend on several nodes: shared memory and TCP at work together.
#include "collectives/host/host_backend.hpp"
#include "unit/collectives/backend_transfer_contract.hpp"

namespace ddp::collectives::testing {
namespace {

Subject on_nodes(std::string name, std::vector<int> nodes) {
  Subject subject{.name = std::move(name),
                  .create =
                      [](const BackendConfig& config) {
                        const int node = config.nodes[static_cast<std::size_t>(config.rank)];
                        // numbers of both parts pass the end of a word
                        return host::create(config, "node " + std::to_string(node), {}, (std::uint64_t{1} << 32U) - 16);
                      },
                  .size = static_cast<int>(nodes.size()),
                  .nodes = std::move(nodes)};
  subject.flat_bits = false;
  subject.reports_mismatch = false;  // only the domains of those that differ know
  subject.many = 300;
  return subject;
}

INSTANTIATE_TEST_SUITE_P(Host, BackendContract, ::testing::Values(on_nodes("two_nodes", {0, 1, 0})), subject_name);

/// What a backend is made of shows in how many collectives it takes at a time.
TEST(HostBackend, TakesSharedMemoryTcpOrBoth) {
  for (const auto& [nodes, collectives] :
       std::vector<std::pair<std::vector<int>, int>>{{{0, 0}, 1}, {{0, 1}, 1}, {{0, 1, 1}, 4}, {{0, 1, 0, 1}, 4}}) {
    const Subject subject = on_nodes("any", nodes);
    BackendRanks group(subject);
    group.on_all([&, collectives = collectives](int rank) {
      EXPECT_EQ(group.at(rank).traits().concurrent_collectives, collectives);
      const CheckedCall call({.kind = OperationKind::all_reduce, .count = 200'000}, subject.size, rank, 1);
      ASSERT_EQ(run(group.at(rank), call.operation()).outcome, Outcome::ok);
      call.check();
    });
  }
}

}  // namespace
}  // namespace ddp::collectives::testing
