// The conformance suite of backends, for hierarchical ones over boards.
#include <map>

#include "unit/collectives/backend_transfer_contract.hpp"
#include "unit/collectives/hierarchy/board_hierarchy.hpp"

namespace ddp::collectives::testing {
namespace {

/// Ranks of a group are created in order: rank 0 makes the boards.
Subject over_boards(std::string name, std::vector<int> nodes, int concurrent_collectives) {
  auto groups = std::make_shared<std::map<std::string, BoardHierarchy>>();
  Subject subject{.name = std::move(name),
                  .create =
                      [groups, concurrent_collectives](const BackendConfig& config) {
                        if (config.rank == 0) {
                          const Board::Options options{
                              .concurrent_collectives = concurrent_collectives, .tells_of_aborts = false, .seed = 3};
                          groups->insert_or_assign(config.group, BoardHierarchy(config.nodes, options, 16'000));
                        }
                        return groups->at(config.group).make(config.rank);
                      },
                  .size = static_cast<int>(nodes.size()),
                  .nodes = std::move(nodes)};
  subject.flat_bits = false;
  subject.reports_mismatch = false;  // only the domains of those that differ know
  subject.many = 200;
  subject.large_bytes = 200'004;
  return subject;
}

INSTANTIATE_TEST_SUITE_P(Hierarchy, BackendContract, ::testing::Values(over_boards("cyclic", {0, 1, 0}, 2)),
                         subject_name);

}  // namespace
}  // namespace ddp::collectives::testing
