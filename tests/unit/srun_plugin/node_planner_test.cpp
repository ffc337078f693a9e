// What ddp-step tells the tasks of a node, on machines of which the tests know everything.
#include "step_program/node_planner.hpp"

#include <ddp/error.hpp>
#include <ddp/topology.hpp>

#include "base/byte_stream.hpp"
#include "support/checkout.hpp"
#include "topology/placement/rank_resources.hpp"

namespace ddp::srun_plugin {
namespace {

using Variables = std::map<std::string, std::string, std::less<>>;

/// 2 packages with 4 cores each, of 1 processor each; no devices.
Topology two_packages() { return Topology::synthetic("pack:2 numa:1 core:4 pu:1"); }
/// 8 GPUs and 8 NICs on 4 NUMA nodes with 4 cores each: core i has the processors i and i + 16.
Topology eight_gpus() {
  return Topology::from_xml_file(ddp::test::source_root() / "tests/topologies/eight-gpus-four-switches.xml");
}

/// A question of as many tasks as @p masks, all on the only node of the step.
struct Asked : NodeQuestion {
  std::vector<Bytes> resources;
};
Asked question_of(const std::vector<std::string>& masks) {
  Asked question;
  question.node_list = question.node_name = "n1";
  for (const std::string& mask : masks) {
    question.resources.push_back(encode(topology::RankResources{.cpus = CpuSet::parse(mask)}));
  }
  return question;
}
Asked eight_tasks() { return question_of(std::vector<std::string>(8, "0-31")); }

/// Of a node on which @p interface was chosen.
NodeFindings chosen(const std::string& interface, std::vector<std::string> remarks = {}) {
  return {.interface = interface, .remarks = std::move(remarks)};
}

NodeAnswer plan_of(const Topology& machine, const Asked& question, Variables variables = {}) {
  const base::Environment environment{std::move(variables)};
  const NetworkChoice choice = choose_network(read_own_network(question, environment), {}, environment);
  return make_answer(&machine, question, {question.resources}, chosen(choice.interface.name, choice.remarks),
                     environment);
}

std::vector<std::string> cpus_of(const NodeAnswer& plan) {
  std::vector<std::string> list;
  for (const TaskPlan& task : plan.tasks) list.push_back(task.cpus);
  return list;
}

/// "-" if it is not set.
std::string value_of(const TaskPlan& task, const std::string& name) {
  const auto found = std::find_if(task.settings.begin(), task.settings.end(),
                                  [&](const auto& setting) { return setting.first == name; });
  return found == task.settings.end() ? "-" : found->second;
}
std::vector<std::string> values_of(const NodeAnswer& plan, const std::string& name) {
  std::vector<std::string> list;
  for (const TaskPlan& task : plan.tasks) list.push_back(value_of(task, name));
  return list;
}
std::vector<std::string> names_of(const NodeAnswer& plan) {
  std::vector<std::string> list;
  for (const TaskPlan& task : plan.tasks) {
    for (const auto& [name, value] : task.settings) list.push_back(name);
  }
  return list;
}

TEST(PlanCommand, TasksAreSpreadOverTheMachine) {
  const NodeAnswer plan = plan_of(two_packages(), question_of({"0-7", "0-7"}));
  EXPECT_THAT(cpus_of(plan), ElementsAre("0-3", "4-7"));
  EXPECT_THAT(plan.remarks, IsEmpty());
  EXPECT_THAT(plan.tasks[0].summary, HasSubstr("4 cores (processors 0-3)"));
  EXPECT_THAT(values_of(plan, "OMP_NUM_THREADS"), ElementsAre("4", "4"));
  EXPECT_NE(plan.tasks[0].preferred_memory, plan.tasks[1].preferred_memory);
}

TEST(PlanCommand, OnOneNodeRanksTalkOverLoopback) {
  EXPECT_THAT(values_of(plan_of(two_packages(), question_of({"0-7", "0-7"})), "GLOO_SOCKET_IFNAME"),
              ElementsAre("lo", "lo"));
}

TEST(PlanCommand, PolicyIsTheQuestions) {
  Asked question = question_of({"0-7", "0-7"});
  question.bind = BindPolicy::core;
  EXPECT_THAT(cpus_of(plan_of(two_packages(), question)), ElementsAre("0", "4"));
  question.bind = BindPolicy::none;
  for (const TaskPlan& task : plan_of(two_packages(), question).tasks) EXPECT_EQ(task.cpus, "");
}

TEST(PlanCommand, TasksWithMasksOfTheirOwnStayInside) {
  const std::vector<std::string> masks{"2-3", "0-1,4", "6", "5,7"};
  const NodeAnswer plan = plan_of(two_packages(), question_of(masks));
  ASSERT_EQ(plan.tasks.size(), masks.size());
  for (std::size_t i = 0; i < masks.size(); ++i) {
    const CpuSet given = CpuSet::parse(plan.tasks[i].cpus);
    EXPECT_FALSE(given.empty());
    EXPECT_TRUE(CpuSet::parse(masks[i]).contains(given)) << given.to_string() << " is not inside " << masks[i];
  }
}

TEST(PlanCommand, EachTaskIsNextToItsGpu) {
  const NodeAnswer plan = plan_of(eight_gpus(), eight_tasks());
  EXPECT_THAT(cpus_of(plan), ElementsAre("4-5,20-21", "6-7,22-23", "0-1,16-17", "2-3,18-19", "12-13,28-29",
                                         "14-15,30-31", "8-9,24-25", "10-11,26-27"));
  EXPECT_THAT(plan.tasks[3].summary, HasSubstr("GPU 3 ("));
  EXPECT_THAT(plan.tasks[3].summary, HasSubstr("ib3"));
}

TEST(PlanCommand, OwnGpuIsVisibleOnly) {
  Asked question = eight_tasks();
  question.gpus = topology::GpuVisibility::one;
  const auto visible = values_of(plan_of(eight_gpus(), question), "CUDA_VISIBLE_DEVICES");
  EXPECT_THAT(visible, Each(Not(::testing::AnyOf("-", HasSubstr(",")))));
  EXPECT_EQ(std::set<std::string>(visible.begin(), visible.end()).size(), 8U);
  question.gpus = topology::GpuVisibility::none;
  EXPECT_THAT(values_of(plan_of(eight_gpus(), question), "CUDA_VISIBLE_DEVICES"), Each("-"));
}

TEST(PlanCommand, DeviceVariablesAreThoseOfEachTask) {
  Asked question = question_of({"0-31", "0-31"});
  question.resources.clear();
  for (const char* device : {"6", "1"}) {  // as --gpus-per-task gives them
    question.resources.push_back(
        encode(topology::RankResources{.cpus = CpuSet::parse("0-31"), .devices = {{"CUDA_VISIBLE_DEVICES", device}}}));
  }
  const NodeAnswer plan = plan_of(eight_gpus(), question);
  EXPECT_THAT(plan.tasks[0].summary, HasSubstr("GPU 6 ("));
  EXPECT_THAT(plan.tasks[1].summary, HasSubstr("GPU 1 ("));
  EXPECT_TRUE(CpuSet::parse("8-11,24-27").contains(CpuSet::parse(plan.tasks[0].cpus)));
  EXPECT_TRUE(CpuSet::parse("4-7,20-23").contains(CpuSet::parse(plan.tasks[1].cpus)));
  EXPECT_THAT(values_of(plan, "CUDA_VISIBLE_DEVICES"), Each("-")) << "they have it already";
}

TEST(PlanCommand, TasksWhoseCgroupsShowThemGpuZeroAreToldApart) {
  const Topology machine = eight_gpus();
  Asked question = question_of({"0-31", "0-31"});
  question.resources.clear();
  for (const std::size_t gpu : {6U, 1U}) {  // --gpus-per-task with ConstrainDevices
    question.resources.push_back(encode(topology::RankResources{
        .cpus = CpuSet::parse("0-31"), .devices = {{"CUDA_VISIBLE_DEVICES", "0"}}, .gpus = {machine.gpus()[gpu].pci}}));
  }
  const NodeAnswer plan = plan_of(machine, question);
  EXPECT_THAT(plan.tasks[0].summary, HasSubstr("GPU 6 ("));
  EXPECT_THAT(plan.tasks[1].summary, HasSubstr("GPU 1 ("));
  EXPECT_TRUE(CpuSet::parse("8-11,24-27").contains(CpuSet::parse(plan.tasks[0].cpus)));
  EXPECT_TRUE(CpuSet::parse("4-7,20-23").contains(CpuSet::parse(plan.tasks[1].cpus)));
  EXPECT_THAT(values_of(plan, "CUDA_VISIBLE_DEVICES"), Each("-")) << "0 is each task's own";
  EXPECT_THAT(plan.remarks, IsEmpty());
}

TEST(PlanCommand, UsersVariablesStayAway) {
  const NodeAnswer without = plan_of(eight_gpus(), eight_tasks());
  ASSERT_THAT(names_of(without), Contains("OMP_NUM_THREADS"));
  ASSERT_THAT(names_of(without), Contains("NCCL_IB_HCA"));
  const NodeAnswer plan =
      plan_of(eight_gpus(), eight_tasks(), {{"OMP_NUM_THREADS", "3"}, {"NCCL_IB_HCA", "mlx5_0"}, {"OTHER", "x"}});
  EXPECT_THAT(names_of(plan), Not(Contains("OMP_NUM_THREADS")));
  EXPECT_THAT(names_of(plan), Not(Contains("NCCL_IB_HCA")));
  EXPECT_THAT(names_of(plan), Not(Contains("OTHER")));
  EXPECT_THAT(names_of(plan), Contains("NCCL_SOCKET_IFNAME"));
}

TEST(PlanCommand, AUsersValueThatDoesNotFitIsRemarkedOnce) {
  const NodeAnswer plan = plan_of(eight_gpus(), eight_tasks(), {{"NCCL_IB_HCA", "=mlx5_99"}});
  ASSERT_EQ(plan.remarks.size(), 1U);
  EXPECT_THAT(plan.remarks[0], StartsWith("NCCL_IB_HCA=\"=mlx5_99\" was kept, but "));
}

TEST(PlanCommand, TheBackendOfCpusNeedsNoSettingsOfGpuNetworks) {
  Asked question = eight_tasks();
  ASSERT_THAT(names_of(plan_of(eight_gpus(), question)), Contains(StartsWith("NCCL_")));
  ASSERT_THAT(names_of(plan_of(eight_gpus(), question)), Contains(StartsWith("UCX_")));
  for (const char* const name : {"host", "cpu", "gloo"}) {
    question.backend = name;
    const auto names = names_of(plan_of(eight_gpus(), question));
    EXPECT_THAT(names, Each(Not(StartsWith("NCCL_"))));
    EXPECT_THAT(names, Each(Not(StartsWith("UCX_"))));
    EXPECT_THAT(names, Contains("GLOO_SOCKET_IFNAME")) << "PyTorch's gloo reads it";
    EXPECT_THAT(names, Contains("OMP_NUM_THREADS"));
  }
}

TEST(PlanCommand, WithoutAnInterfaceTasksArePlacedAllTheSame) {
  Asked question = question_of({"0-7", "0-7"});
  question.node_list = "n[1-2]";
  const NodeAnswer plan = plan_of(two_packages(), question, {{"DDP_SOCKET_IFNAME", "nothing-like-that0"}});
  EXPECT_THAT(cpus_of(plan), ElementsAre("0-3", "4-7"));
  ASSERT_THAT(plan.remarks, Not(IsEmpty()));
  EXPECT_THAT(plan.remarks[0], AllOf(HasSubstr("no network interface is chosen"), HasSubstr("nothing-like-that0")));
  EXPECT_THAT(names_of(plan), Not(Contains("GLOO_SOCKET_IFNAME")));
}

TEST(PlanCommand, TasksThatCannotBePlacedTogetherLearnTheNetwork) {
  Asked question = question_of({});
  const auto answer = [&](Variables variables = {}, const std::vector<base::NcclConf>& conf = {}) {
    return make_answer(nullptr, question, {}, chosen("ib0", {"x"}), base::Environment{std::move(variables)}, conf);
  };
  const NodeAnswer plan = answer();
  ASSERT_EQ(plan.tasks.size(), 1U);
  EXPECT_EQ(plan.tasks[0].cpus, "");
  EXPECT_EQ(value_of(plan.tasks[0], "NCCL_SOCKET_IFNAME"), "=ib0");
  EXPECT_EQ(value_of(plan.tasks[0], "GLOO_SOCKET_IFNAME"), "ib0");
  EXPECT_THAT(plan.remarks, ElementsAre("x"));
  EXPECT_EQ(value_of(plan.tasks[0], "TP_SOCKET_IFNAME"), "ib0") << "torch's RPC reads it";
  EXPECT_THAT(names_of(answer({{"GLOO_SOCKET_IFNAME", "eth0"}, {"TP_SOCKET_IFNAME", "eth0"}})),
              ElementsAre("NCCL_SOCKET_IFNAME"));
  const std::vector<base::NcclConf> conf{
      {.path = "/etc/nccl.conf", .digest = 0, .settings = {{"NCCL_SOCKET_IFNAME", "ib"}}}};
  EXPECT_THAT(names_of(answer({}, conf)), ElementsAre("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"));
  const Topology machine = two_packages();
  const Asked one = question_of({"0-7"});
  const NodeAnswer placed = make_answer(&machine, one, {one.resources}, chosen("ib0"), base::Environment{{}}, conf);
  EXPECT_THAT(names_of(placed), testing::AllOf(Contains("GLOO_SOCKET_IFNAME"), Not(Contains("NCCL_SOCKET_IFNAME"))));
  question.backend = "gloo";
  EXPECT_THAT(names_of(answer()), ElementsAre("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"));
}

topology::InterfaceCandidate candidate(std::string interface, std::string address, bool routes) {
  return {.interface = std::move(interface),
          .at = {.address = {.address = std::move(address), .prefix_length = 24, .ipv6 = false},
                 .routes_to_peers = routes,
                 .rate_mbps = 1000}};
}

TEST(NodeNetwork, IsWhatAllAgreedOnElseWhatRoutesToTheOthers) {
  OwnNetwork own;
  own.search.candidates = {candidate("ib0", "10.1.0.1", false), candidate("eth0", "10.0.0.1", true)};
  own.several_nodes = true;
  const base::Environment environment{Variables{}};
  const auto name = [&](const std::optional<topology::SocketInterface>& agreed) {
    return choose_network(own, agreed, environment).interface.name;
  };
  EXPECT_EQ(name(topology::SocketInterface{.name = "ib0"}), "ib0");
  EXPECT_EQ(name(topology::SocketInterface{.reason = "n2 did not take part"}), "eth0");
  EXPECT_EQ(name({}), "eth0");
  own.search.candidates.erase(own.search.candidates.begin() + 1);
  EXPECT_EQ(name({}), "ib0") << "there is no other";
  own.search.candidates.clear();
  EXPECT_EQ(name(topology::SocketInterface{.name = "ib0"}), "");
}

TEST(PlanCommand, QuestionsThatMakeNoSenseAreErrors) {
  EXPECT_THROW(plan_of(two_packages(), question_of({})), Error);
  EXPECT_THROW(plan_of(two_packages(), question_of({"0-3", "64"})), Error) << "a processor that is not there";
  Asked question = question_of({"0-3"});
  question.resources[0] = base::to_bytes("nonsense");
  EXPECT_THROW(plan_of(two_packages(), question), Error);
}

}  // namespace
}  // namespace ddp::srun_plugin
