// What holds for the plan of any node, on random machines and requests. Failures name the seed.
#include <ddp/topology.hpp>

#include "support/sanitized.hpp"
#include "topology/placement/node_planner.hpp"
#include "unit/topology/dice.hpp"
#include "unit/topology/machines.hpp"

namespace ddp::topology {
namespace {

constexpr std::uint32_t kNodes = ::ddp::test::cases(400);

CpuSet random_part(ddp::test::Dice& dice, const CpuSet& of) {
  CpuSet part;
  for (const int cpu : of.to_vector()) {
    if (!dice.one_in(3)) part.insert(cpu);
  }
  if (part.empty()) part.insert(of.first());
  return part;
}

NodeRequest random_request(ddp::test::Dice& dice, const Topology& machine) {
  std::map<std::string, std::string, std::less<>> variables{{"PATH", "/bin"}};
  for (const char* name : {"OMP_NUM_THREADS", "NCCL_IB_HCA", "UCX_NET_DEVICES", "OMP_PROC_BIND", "CUDA_DEVICE_ORDER"}) {
    if (dice.one_in(5)) variables.emplace(name, fmt::format("user's {}", dice.between(0, 9)));
  }
  NodeRequest request{.bind = static_cast<BindPolicy>(dice.between(0, 3)),
                      .gpus = static_cast<GpuVisibility>(dice.between(0, 2)),
                      .interface = {.name = dice.one_in(2) ? "ib0" : "", .reason = "a reason"},
                      .environment = base::Environment{variables}};
  const bool own_masks = dice.one_in(3);
  const bool own_gpus = dice.one_in(4);
  for (int left = dice.between(1, 12); left > 0; --left) {
    RankResources rank{.cpus = own_masks ? random_part(dice, machine.cpus()) : machine.cpus()};
    if (own_gpus) rank.devices.emplace("CUDA_VISIBLE_DEVICES", std::to_string(dice.between(0, 7)));
    request.ranks.push_back(std::move(rank));
  }
  return request;
}

void check_rank(const NodeRequest& request, const RankPlan& plan, std::size_t local_rank) {
  const RankResources& rank = request.ranks[local_rank];
  EXPECT_EQ(plan.placement.local_rank, static_cast<int>(local_rank));
  EXPECT_TRUE(rank.cpus.contains(plan.placement.cpus)) << "it would leave its mask";
  EXPECT_EQ(plan.binding.has_value(), request.bind != BindPolicy::none);
  if (plan.binding) {
    EXPECT_EQ(plan.binding->cpus, plan.placement.cpus);
  }
  EXPECT_NE(plan.summary, "");
  auto expected = request.environment.variables();
  for (const auto& [name, value] : rank.devices) expected.insert_or_assign(name, value);
  for (const Setting& setting : plan.settings) {
    const auto users = expected.find(setting.name);
    EXPECT_EQ(setting.by_user, users != expected.end()) << setting.name;
    if (setting.by_user) {
      EXPECT_EQ(setting.value, users->second) << "a user's variable was changed";
    } else {
      EXPECT_EQ(setting.conflict, "") << setting.name;
    }
    const bool of_sockets = setting.name.ends_with("_SOCKET_IFNAME");
    EXPECT_FALSE(of_sockets && request.interface.name.empty()) << setting.name;
    EXPECT_NE(setting.reason, "") << setting.name;
  }
  EXPECT_TRUE(std::is_sorted(plan.settings.begin(), plan.settings.end(),
                             [](const Setting& a, const Setting& b) { return a.name < b.name; }));
}

TEST(NodePlannerProperty, HoldsOnEveryMachine) {
  for (std::uint32_t seed = 0; seed < kNodes && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(fmt::format("seed {}", seed));
    ddp::test::Dice dice(seed);
    const Topology machine = Topology::from_parts(ddp::test::random_machine(seed));
    const NodeRequest request = random_request(dice, machine);
    const std::vector<RankPlan> plans = plan_node(machine, request);
    ASSERT_EQ(plans.size(), request.ranks.size());
    for (std::size_t i = 0; i < plans.size(); ++i) check_rank(request, plans[i], i);

    const std::vector<RankPlan> again = plan_node(machine, request);
    for (std::size_t i = 0; i < plans.size(); ++i) {
      EXPECT_EQ(plans[i].binding, again[i].binding);
      EXPECT_EQ(plans[i].placement.gpu, again[i].placement.gpu);
      EXPECT_EQ(plans[i].summary, again[i].summary);
    }
    if (request.gpus == GpuVisibility::none) {
      for (const RankPlan& plan : plans) {
        for (const Setting& setting : plan.settings) {
          EXPECT_TRUE(setting.by_user || !setting.name.ends_with("_VISIBLE_DEVICES")) << setting.name;
        }
      }
    }
  }
}

}  // namespace
}  // namespace ddp::topology
