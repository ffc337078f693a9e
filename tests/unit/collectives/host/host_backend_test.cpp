// Two threads of each rank with a group of their own each, over the CPU backend: neither disturbs the other.
#include <ddp/process_group.hpp>

#include "collectives/group_engine.hpp"
#include "collectives/host/host_backend.hpp"
#include "support/sanitized.hpp"
#include "unit/collectives/backend_ranks.hpp"
#include "unit/collectives/backend_transfer_contract.hpp"
#include "unit/kvs/rank_threads.hpp"

namespace ddp::collectives::testing {
namespace {

constexpr int kGroupRanks = 3;
constexpr int kOperations = ::ddp::test::cases(500);

/// By rank.
using Backends = std::vector<std::unique_ptr<Backend>>;

Backends backends_of(const std::string& group, const std::vector<int>& domains) {
  Backends backends;
  for (int rank = 0; rank < kGroupRanks; ++rank) {
    BackendConfig config;
    config.group = group;
    config.rank = rank;
    config.size = kGroupRanks;
    config.nodes = domains;
    config.interface_address = "127.0.0.1";
    backends.push_back(host::create(config, "domain " + std::to_string(domains[static_cast<std::size_t>(rank)])));
  }
  return backends;
}

std::vector<Bytes> addresses_of(const Backends& backends) {
  std::vector<Bytes> addresses;
  for (const auto& backend : backends) addresses.push_back(backend->address());
  return addresses;
}

ProcessGroup connected(const std::string& name, int rank, std::unique_ptr<Backend> backend,
                       const std::vector<Bytes>& addresses) {
  backend->connect(addresses, soon());
  GroupMembers members{.name = name,
                       .rank = rank,
                       .global_ranks = {0, 1, 2},
                       .endpoints = std::vector<world::PeerEndpoint>(kGroupRanks),
                       .channel = nullptr,
                       .peer_timeout = std::chrono::seconds(30)};
  std::vector<GroupBackend> backends;
  backends.push_back({"host", std::move(backend)});
  return ProcessGroup{
      GroupEngine::make(std::move(members), std::move(backends), ConnectOptions{}, std::chrono::seconds(120))};
}

/// The same on all ranks, but for transfers. Some operations are waited for at once, others later.
void use(ProcessGroup& group, unsigned seed) {
  struct Open {
    Work work;
    std::vector<float> values;
    float expected;
  };
  std::mt19937 random(seed);
  std::deque<Open> open;
  const auto finish = [&] {
    const Open& first = open.front();
    first.work.wait();
    const auto wrong =
        std::find_if(first.values.begin(), first.values.end(), [&](float value) { return value != first.expected; });
    EXPECT_TRUE(wrong == first.values.end()) << *wrong << " instead of " << first.expected;
    open.pop_front();
  };
  for (int i = 0; i < kOperations; ++i) {
    const unsigned choice = random() % 16;
    std::vector<float> values(choice % 4 == 0 ? 20'000 : 4, static_cast<float>(group.rank() + i));
    const auto tag = static_cast<std::uint32_t>(i);
    if (choice < 12) {
      const Work work = group.all_reduce(values);
      open.push_back({.work = work, .values = std::move(values), .expected = static_cast<float>(3 * i + 3)});
    } else if (group.rank() == 0) {
      const Work work = group.send(values, 1, tag);
      open.push_back({.work = work, .values = std::move(values), .expected = static_cast<float>(i)});
    } else if (group.rank() == 1) {
      const Work work = group.recv(values, 0, tag);
      open.push_back({.work = work, .values = std::move(values), .expected = static_cast<float>(i)});
    }
    const std::size_t most = choice % 3 == 0 ? 0 : 8;
    while (open.size() > most) finish();
  }
  while (!open.empty()) finish();
  group.barrier().wait();
}

class HostGroups : public ::testing::TestWithParam<std::vector<int>> {};

TEST_P(HostGroups, OfTwoThreadsDoNotDisturbEachOther) {
  std::vector<Backends> groups;
  std::vector<std::vector<Bytes>> addresses;
  for (const char* name : {"first", "second"}) {
    groups.push_back(backends_of(name, GetParam()));
    addresses.push_back(addresses_of(groups.back()));
  }
  ddp::test::run_ranks(2 * kGroupRanks, [&](int thread) {
    const auto which = static_cast<std::size_t>(thread % 2);
    const int rank = thread / 2;
    ProcessGroup group = connected(which == 0 ? "first" : "second", rank,
                                   std::move(groups[which][static_cast<std::size_t>(rank)]), addresses[which]);
    use(group, static_cast<unsigned>(which));
  });
}

INSTANTIATE_TEST_SUITE_P(Host, HostGroups, ::testing::Values(std::vector<int>{0, 0, 0}, std::vector<int>{0, 1, 0}),
                         [](const auto& each) { return each.param[1] == 0 ? "one_domain" : "two_domains"; });

}  // namespace

// The conformance suite of backends, for the CPU backend on several nodes: shared memory and TCP at work together.

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
