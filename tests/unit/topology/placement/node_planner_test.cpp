// What plan_node() puts together: placement, binding, settings and summary of every rank.
#include "topology/placement/node_planner.hpp"

#include <ddp/error.hpp>
#include <ddp/topology.hpp>

#include "unit/kvs/rank_threads.hpp"
#include "unit/topology/machines.hpp"

namespace ddp::topology {
namespace {

using Variables = std::map<std::string, std::string, std::less<>>;

Topology eight_gpus() { return Topology::from_parts(ddp::test::eight_gpu_machine()); }

/// Ranks that may use all of the machine.
NodeRequest request_of(std::size_t num_ranks, Variables variables = {}) {
  const base::Environment environment{std::move(variables)};
  return {.bind = BindPolicy::numa,
          .gpus = GpuVisibility::all,
          .ranks = std::vector<RankResources>(
              num_ranks, {.cpus = CpuSet::parse("0-63"), .devices = device_variables(environment)}),
          .interface = {.name = "ib0", .reason = "it routes to the other nodes"},
          .environment = environment};
}

const Setting* find(const RankPlan& plan, std::string_view name) {
  const auto found =
      std::find_if(plan.settings.begin(), plan.settings.end(), [&](const Setting& each) { return each.name == name; });
  return found == plan.settings.end() ? nullptr : &*found;
}

/// "-": not set; "(user) 3": the user's.
std::vector<std::string> values_of(const std::vector<RankPlan>& plans, std::string_view name) {
  std::vector<std::string> values;
  for (const RankPlan& plan : plans) {
    const Setting* setting = find(plan, name);
    values.push_back(setting == nullptr ? "-" : (setting->by_user ? "(user) " : "") + setting->value);
  }
  return values;
}

std::vector<int> gpus_of(const std::vector<RankPlan>& plans) {
  std::vector<int> gpus;
  for (const RankPlan& plan : plans) gpus.push_back(plan.placement.gpu.value_or(-1));
  return gpus;
}

std::vector<std::string> bindings_of(const std::vector<RankPlan>& plans) {
  std::vector<std::string> bindings;
  for (const RankPlan& plan : plans) bindings.push_back(plan.binding ? plan.binding->cpus.to_string() : "unbound");
  return bindings;
}

/// What task @p rank sees where a device cgroup gives each its own GPU of an eight-GPU machine: the one that the first
/// task's NVML shows, and all others without name or number.
Topology as_first_task_sees(int own) {
  Topology::Parts parts = ddp::test::eight_gpu_machine();
  for (Gpu& gpu : parts.gpus) {
    if (gpu.index == own) continue;
    gpu.visible = false;
    gpu.hidden_reason = "NVML does not show it: the job's device cgroup or container hides it";
    gpu.vendor_index.reset();
  }
  return Topology::from_parts(std::move(parts));
}
/// Tasks with these GPUs, each with Slurm's CUDA_VISIBLE_DEVICES=0.
NodeRequest one_gpu_each(const std::vector<int>& gpus) {
  NodeRequest request = request_of(gpus.size(), {{"CUDA_VISIBLE_DEVICES", "0"}});
  for (std::size_t i = 0; i < gpus.size(); ++i)
    request.ranks[i].gpus = {eight_gpus().gpus()[static_cast<std::size_t>(gpus[i])].pci};
  return request;
}

TEST(NodePlanner, GpusOfADeviceCgroupAreToldApart) {
  const std::vector<int> given{5, 0, 7, 2};
  const std::vector<RankPlan> plans = plan_node(as_first_task_sees(5), one_gpu_each(given));
  EXPECT_THAT(gpus_of(plans), ElementsAre(5, 0, 7, 2));
  for (std::size_t i = 0; i < plans.size(); ++i) {
    EXPECT_FALSE(plans[i].placement.gpu_shared);
    const int numa = given[i] / 2;
    EXPECT_THAT(plans[i].placement.nics, ElementsAre(2 * numa, 2 * numa + 1)) << "behind the GPU's switch";
    EXPECT_THAT(plans[i].placement.numa_nodes, ElementsAre(numa));
  }
  // Inside its cgroup, 0 is each task's own.
  EXPECT_THAT(values_of(plans, "CUDA_VISIBLE_DEVICES"), Each("(user) 0"));
  for (const RankPlan& plan : plans) EXPECT_EQ(find(plan, "CUDA_VISIBLE_DEVICES")->conflict, "");
}

TEST(NodePlanner, GpusOfADeviceCgroupNeedNoVariable) {
  NodeRequest request = one_gpu_each({6, 1});
  for (RankResources& rank : request.ranks) rank.devices.clear();
  request.environment = base::Environment{{}};
  EXPECT_THAT(gpus_of(plan_node(as_first_task_sees(6), request)), ElementsAre(6, 1));
  request.gpus = GpuVisibility::one;
  const auto plans = plan_node(as_first_task_sees(6), request);
  EXPECT_THAT(gpus_of(plans), ElementsAre(6, 1));
  EXPECT_THAT(values_of(plans, "CUDA_VISIBLE_DEVICES"), Each("0"));
}

TEST(NodePlanner, UuidsOfADeviceCgroupAreEachTasksOwn) {
  Topology::Parts parts = ddp::test::eight_gpu_machine();
  for (Gpu& gpu : parts.gpus) gpu.uuid = "GPU-" + std::to_string(gpu.index) + "aaaa";
  NodeRequest request = one_gpu_each({4, 3});
  request.ranks[0].devices["CUDA_VISIBLE_DEVICES"] = "GPU-4aaaa";
  request.ranks[1].devices["CUDA_VISIBLE_DEVICES"] = "GPU-3aaaa";
  EXPECT_THAT(gpus_of(plan_node(Topology::from_parts(parts), request)), ElementsAre(4, 3));
}

TEST(NodePlanner, SeveralGpusOfATasksCgroupAreNumberedFromItsFirst) {
  NodeRequest request = one_gpu_each({0, 0});
  const auto pci = [](int index) { return eight_gpus().gpus()[static_cast<std::size_t>(index)].pci; };
  request.ranks[0].gpus = {pci(2), pci(3)};
  request.ranks[1].gpus = {pci(6), pci(7)};
  for (RankResources& rank : request.ranks) rank.devices["CUDA_VISIBLE_DEVICES"] = "1,0";
  EXPECT_THAT(gpus_of(plan_node(as_first_task_sees(2), request)), ElementsAre(3, 7));
}

TEST(NodePlanner, EqualListsOfDeviceFilesChangeNothing) {
  NodeRequest request = request_of(8);
  const std::vector<RankPlan> without = plan_node(eight_gpus(), request);
  for (RankResources& rank : request.ranks) rank.gpus = {eight_gpus().gpus()[0].pci};
  const std::vector<RankPlan> with = plan_node(eight_gpus(), request);
  EXPECT_EQ(gpus_of(with), gpus_of(without));
  EXPECT_EQ(values_of(with, "CUDA_VISIBLE_DEVICES"), values_of(without, "CUDA_VISIBLE_DEVICES"));
}

TEST(NodePlanner, ARankHasEverythingInOnePlan) {
  const std::vector<RankPlan> plans = plan_node(eight_gpus(), request_of(8));
  ASSERT_EQ(plans.size(), 8U);
  const RankPlan& plan = plans[5];
  EXPECT_EQ(plan.placement.local_rank, 5);
  EXPECT_EQ(plan.placement.gpu, 5);
  ASSERT_TRUE(plan.binding);
  EXPECT_EQ(plan.binding->cpus, CpuSet::parse("20-23,52-55"));
  EXPECT_EQ(plan.binding->preferred_memory, 2);
  EXPECT_EQ(plan.summary, "4 cores (processors 20-23,52-55), NUMA node 2, GPU 5 (0000:15:00.0), NIC ib5 (mlx5_5)");
  EXPECT_THAT(values_of(plans, "OMP_NUM_THREADS"), Each("4"));
  EXPECT_THAT(values_of(plans, "NCCL_SOCKET_IFNAME"), Each("=ib0"));
  EXPECT_EQ(values_of(plans, "UCX_NET_DEVICES")[5], "mlx5_5:1");
  EXPECT_THAT(find(plan, "GLOO_SOCKET_IFNAME")->reason, HasSubstr("it routes to the other nodes"));
}

TEST(NodePlanner, BindWords) {
  const std::vector<std::pair<BindPolicy, std::vector<std::string>>> cases{
      {BindPolicy::numa, {"0-7,32-39", "16-23,48-55"}},
      {BindPolicy::socket, {"0-15,32-47", "16-31,48-63"}},
      {BindPolicy::core, {"0,32", "16,48"}},
      {BindPolicy::none, {"unbound", "unbound"}}};
  for (const auto& [policy, expected] : cases) {
    NodeRequest request = request_of(2);
    request.bind = policy;
    const auto plans = plan_node(eight_gpus(), request);
    EXPECT_EQ(bindings_of(plans), expected) << to_string(policy);
    EXPECT_EQ(gpus_of(plans), (std::vector<int>{0, 4})) << "GPUs do not depend on it";
    EXPECT_THAT(values_of(plans, "OMP_PROC_BIND"), Each(policy == BindPolicy::none ? "-" : "false"));
  }
}

TEST(NodePlanner, FewerRanksThanGpusAreSpreadWhereTheyCanBeTold) {
  NodeRequest request = request_of(2);
  EXPECT_THAT(gpus_of(plan_node(eight_gpus(), request)), ElementsAre(0, 4));
  EXPECT_THAT(values_of(plan_node(eight_gpus(), request), "CUDA_VISIBLE_DEVICES"), Each("0,4,1,2,3,5,6,7"));
  request.gpus = GpuVisibility::one;
  EXPECT_THAT(values_of(plan_node(eight_gpus(), request), "CUDA_VISIBLE_DEVICES"), ElementsAre("0", "4"));
  request.gpus = GpuVisibility::none;
  EXPECT_THAT(gpus_of(plan_node(eight_gpus(), request)), ElementsAre(0, 1)) << "programs take that of their local rank";
  EXPECT_THAT(values_of(plan_node(eight_gpus(), request), "CUDA_VISIBLE_DEVICES"), Each("-"));
}

TEST(NodePlanner, ListsOfGpusAreKept) {
  const auto common = plan_node(eight_gpus(), request_of(2, {{"CUDA_VISIBLE_DEVICES", "6,1"}}));
  EXPECT_THAT(gpus_of(common), ElementsAre(6, 1));
  EXPECT_THAT(values_of(common, "CUDA_VISIBLE_DEVICES"), Each("(user) 6,1"));

  NodeRequest request = request_of(2);
  request.ranks[0].devices = {{"CUDA_VISIBLE_DEVICES", "7"}};
  request.ranks[1].devices = {{"CUDA_VISIBLE_DEVICES", "2"}};
  const auto own = plan_node(eight_gpus(), request);
  EXPECT_THAT(gpus_of(own), ElementsAre(7, 2));
  EXPECT_THAT(values_of(own, "CUDA_VISIBLE_DEVICES"), ElementsAre("(user) 7", "(user) 2")) << "each has its own";

  EXPECT_THAT(gpus_of(plan_node(eight_gpus(), request_of(2, {{"CUDA_VISIBLE_DEVICES", ""}}))), ElementsAre(-1, -1));
}

TEST(NodePlanner, UsersVariablesAreKeptAndJudged) {
  const auto plans =
      plan_node(eight_gpus(), request_of(8, {{"OMP_NUM_THREADS", "99"}, {"NCCL_IB_HCA", "mlx5_0"}, {"OTHER", "x"}}));
  EXPECT_THAT(values_of(plans, "OMP_NUM_THREADS"), Each("(user) 99"));
  EXPECT_THAT(find(plans[0], "OMP_NUM_THREADS")->conflict, HasSubstr("only 8 hardware threads"));
  EXPECT_THAT(values_of(plans, "NCCL_IB_HCA"), Each("(user) mlx5_0"));
  EXPECT_EQ(find(plans[0], "NCCL_IB_HCA")->conflict, "");
  EXPECT_THAT(values_of(plans, "OTHER"), Each("-"));
}

TEST(NodePlanner, WithoutAnInterfaceNoneIsRecommended) {
  NodeRequest request = request_of(2);
  request.interface = {};
  EXPECT_THAT(values_of(plan_node(eight_gpus(), request), "NCCL_SOCKET_IFNAME"), Each("-"));
}

TEST(NodePlanner, RanksKeepToTheirMasks) {
  NodeRequest request = request_of(2);
  request.ranks[0].cpus = CpuSet::parse("8-11");
  request.ranks[1].cpus = CpuSet::parse("24,25");
  EXPECT_THAT(bindings_of(plan_node(eight_gpus(), request)), ElementsAre("8-11", "24-25"));
}

TEST(NodePlanner, RequestsThatMakeNoSenseAreRefused) {
  const auto refused = [](const NodeRequest& request) {
    return ddp::test::error_of([&] { plan_node(eight_gpus(), request); });
  };
  EXPECT_FALSE(refused(request_of(1)));
  const Error nobody = refused(request_of(0)).value();
  EXPECT_EQ(nobody.code(), ErrorCode::invalid_argument);
  NodeRequest elsewhere = request_of(2);
  elsewhere.ranks[1].cpus = CpuSet::parse("64");
  const Error error = refused(elsewhere).value();
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error.cause(), HasSubstr("of local rank 1 (64)"));
}

}  // namespace
}  // namespace ddp::topology
