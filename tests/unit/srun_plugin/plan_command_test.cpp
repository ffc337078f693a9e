// What ddp-step tells the tasks of a node, on machines of which the tests know everything.
#include "step_program/plan_command.hpp"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ddp/error.hpp>
#include <ddp/topology.hpp>

#include "base/byte_stream.hpp"
#include "support/checkout.hpp"
#include "topology/placement/rank_resources.hpp"

namespace ddp::srun_plugin {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::StartsWith;
using Variables = std::map<std::string, std::string, std::less<>>;

/// 2 packages with 4 cores each, of 1 processor each; no devices.
Topology two_packages() { return Topology::synthetic("pack:2 numa:1 core:4 pu:1"); }
/// 8 GPUs and 8 NICs on 4 NUMA nodes with 4 cores each: core i has the processors i and i + 16.
Topology eight_gpus() {
  return Topology::from_xml_file(ddp::test::source_root() / "tests/topologies/eight-gpus-four-switches.xml");
}

/// A question of as many tasks as @p masks, all on the only node of the step.
PlanQuestion question_of(const std::vector<std::string>& masks) {
  PlanQuestion question{.bind = BindPolicy::numa,
                        .gpus = topology::GpuVisibility::all,
                        .backend = "auto",
                        .node_list = "n1",
                        .node_name = "n1",
                        .store_port = 0};
  for (const std::string& mask : masks) {
    question.resources.push_back(encode(topology::RankResources{.cpus = CpuSet::parse(mask)}));
  }
  return question;
}
PlanQuestion eight_tasks() { return question_of(std::vector<std::string>(8, "0-31")); }

NodePlan plan_of(const Topology& machine, const PlanQuestion& question, Variables variables = {}) {
  const base::Environment environment{std::move(variables)};
  return make_node_plan(machine, question, choose_network(question, environment), environment);
}

std::vector<std::string> cpus_of(const NodePlan& plan) {
  std::vector<std::string> list;
  for (const TaskPlan& task : plan.tasks) list.push_back(task.binding.value_or(Binding{}).cpus.to_string());
  return list;
}

/// "-" if it is not set.
std::string value_of(const TaskPlan& task, const std::string& name) {
  const auto found = std::find_if(task.settings.begin(), task.settings.end(),
                                  [&](const auto& setting) { return setting.first == name; });
  return found == task.settings.end() ? "-" : found->second;
}
std::vector<std::string> values_of(const NodePlan& plan, const std::string& name) {
  std::vector<std::string> list;
  for (const TaskPlan& task : plan.tasks) list.push_back(value_of(task, name));
  return list;
}
std::vector<std::string> names_of(const NodePlan& plan) {
  std::vector<std::string> list;
  for (const TaskPlan& task : plan.tasks) {
    for (const auto& [name, value] : task.settings) list.push_back(name);
  }
  return list;
}

TEST(PlanCommand, TasksAreSpreadOverTheMachine) {
  const NodePlan plan = plan_of(two_packages(), question_of({"0-7", "0-7"}));
  EXPECT_THAT(cpus_of(plan), ElementsAre("0-3", "4-7"));
  EXPECT_THAT(plan.remarks, IsEmpty());
  EXPECT_THAT(plan.tasks[0].summary, HasSubstr("4 cores (processors 0-3)"));
  EXPECT_THAT(values_of(plan, "OMP_NUM_THREADS"), ElementsAre("4", "4"));
  EXPECT_NE(plan.tasks[0].binding->preferred_memory, plan.tasks[1].binding->preferred_memory);
}

TEST(PlanCommand, OnOneNodeRanksTalkOverLoopback) {
  EXPECT_THAT(values_of(plan_of(two_packages(), question_of({"0-7", "0-7"})), "GLOO_SOCKET_IFNAME"),
              ElementsAre("lo", "lo"));
}

TEST(PlanCommand, PolicyIsTheQuestions) {
  PlanQuestion question = question_of({"0-7", "0-7"});
  question.bind = BindPolicy::core;
  EXPECT_THAT(cpus_of(plan_of(two_packages(), question)), ElementsAre("0", "4"));
  question.bind = BindPolicy::none;
  for (const TaskPlan& task : plan_of(two_packages(), question).tasks) EXPECT_EQ(task.binding, std::nullopt);
}

TEST(PlanCommand, TasksWithMasksOfTheirOwnStayInside) {
  const std::vector<std::string> masks{"2-3", "0-1,4", "6", "5,7"};
  const NodePlan plan = plan_of(two_packages(), question_of(masks));
  ASSERT_EQ(plan.tasks.size(), masks.size());
  for (std::size_t i = 0; i < masks.size(); ++i) {
    const CpuSet given = plan.tasks[i].binding.value().cpus;
    EXPECT_FALSE(given.empty());
    EXPECT_TRUE(CpuSet::parse(masks[i]).contains(given)) << given.to_string() << " is not inside " << masks[i];
  }
}

TEST(PlanCommand, EachTaskIsNextToItsGpu) {
  const NodePlan plan = plan_of(eight_gpus(), eight_tasks());
  EXPECT_THAT(cpus_of(plan), ElementsAre("4-5,20-21", "6-7,22-23", "0-1,16-17", "2-3,18-19", "12-13,28-29",
                                         "14-15,30-31", "8-9,24-25", "10-11,26-27"));
  EXPECT_THAT(plan.tasks[3].summary, HasSubstr("GPU 3 ("));
  EXPECT_THAT(plan.tasks[3].summary, HasSubstr("ib3"));
}

TEST(PlanCommand, OwnGpuIsVisibleOnly) {
  PlanQuestion question = eight_tasks();
  question.gpus = topology::GpuVisibility::one;
  const auto visible = values_of(plan_of(eight_gpus(), question), "CUDA_VISIBLE_DEVICES");
  EXPECT_THAT(visible, Each(Not(::testing::AnyOf("-", HasSubstr(",")))));
  EXPECT_EQ(std::set<std::string>(visible.begin(), visible.end()).size(), 8U);
  question.gpus = topology::GpuVisibility::none;
  EXPECT_THAT(values_of(plan_of(eight_gpus(), question), "CUDA_VISIBLE_DEVICES"), Each("-"));
}

TEST(PlanCommand, DeviceVariablesAreThoseOfEachTask) {
  PlanQuestion question = question_of({"0-31", "0-31"});
  question.resources.clear();
  for (const char* device : {"6", "1"}) {  // as --gpus-per-task gives them
    question.resources.push_back(
        encode(topology::RankResources{.cpus = CpuSet::parse("0-31"), .devices = {{"CUDA_VISIBLE_DEVICES", device}}}));
  }
  const NodePlan plan = plan_of(eight_gpus(), question);
  EXPECT_THAT(plan.tasks[0].summary, HasSubstr("GPU 6 ("));
  EXPECT_THAT(plan.tasks[1].summary, HasSubstr("GPU 1 ("));
  EXPECT_TRUE(CpuSet::parse("8-11,24-27").contains(plan.tasks[0].binding.value().cpus));
  EXPECT_TRUE(CpuSet::parse("4-7,20-23").contains(plan.tasks[1].binding.value().cpus));
  EXPECT_THAT(values_of(plan, "CUDA_VISIBLE_DEVICES"), Each("-")) << "they have it already";
}

TEST(PlanCommand, TasksWhoseCgroupsShowThemGpuZeroAreToldApart) {
  const Topology machine = eight_gpus();
  PlanQuestion question = question_of({"0-31", "0-31"});
  question.resources.clear();
  for (const std::size_t gpu : {6U, 1U}) {  // --gpus-per-task with ConstrainDevices
    question.resources.push_back(encode(topology::RankResources{
        .cpus = CpuSet::parse("0-31"), .devices = {{"CUDA_VISIBLE_DEVICES", "0"}}, .gpus = {machine.gpus()[gpu].pci}}));
  }
  const NodePlan plan = plan_of(machine, question);
  EXPECT_THAT(plan.tasks[0].summary, HasSubstr("GPU 6 ("));
  EXPECT_THAT(plan.tasks[1].summary, HasSubstr("GPU 1 ("));
  EXPECT_TRUE(CpuSet::parse("8-11,24-27").contains(plan.tasks[0].binding.value().cpus));
  EXPECT_TRUE(CpuSet::parse("4-7,20-23").contains(plan.tasks[1].binding.value().cpus));
  EXPECT_THAT(values_of(plan, "CUDA_VISIBLE_DEVICES"), Each("-")) << "0 is each task's own";
  EXPECT_THAT(plan.remarks, IsEmpty());
}

TEST(PlanCommand, UsersVariablesStayAway) {
  const NodePlan without = plan_of(eight_gpus(), eight_tasks());
  ASSERT_THAT(names_of(without), Contains("OMP_NUM_THREADS"));
  ASSERT_THAT(names_of(without), Contains("NCCL_IB_HCA"));
  const NodePlan plan =
      plan_of(eight_gpus(), eight_tasks(), {{"OMP_NUM_THREADS", "3"}, {"NCCL_IB_HCA", "mlx5_0"}, {"OTHER", "x"}});
  EXPECT_THAT(names_of(plan), Not(Contains("OMP_NUM_THREADS")));
  EXPECT_THAT(names_of(plan), Not(Contains("NCCL_IB_HCA")));
  EXPECT_THAT(names_of(plan), Not(Contains("OTHER")));
  EXPECT_THAT(names_of(plan), Contains("NCCL_SOCKET_IFNAME"));
}

TEST(PlanCommand, AUsersValueThatDoesNotFitIsRemarkedOnce) {
  const NodePlan plan = plan_of(eight_gpus(), eight_tasks(), {{"NCCL_IB_HCA", "=mlx5_99"}});
  ASSERT_EQ(plan.remarks.size(), 1U);
  EXPECT_THAT(plan.remarks[0], StartsWith("NCCL_IB_HCA=\"=mlx5_99\" was kept, but "));
}

TEST(PlanCommand, TheBackendOfCpusNeedsNoSettingsOfGpuNetworks) {
  PlanQuestion question = eight_tasks();
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
  PlanQuestion question = question_of({"0-7", "0-7"});
  question.node_list = "n[1-2]";
  const NodePlan plan = plan_of(two_packages(), question, {{"DDP_SOCKET_IFNAME", "nothing-like-that0"}});
  EXPECT_THAT(cpus_of(plan), ElementsAre("0-3", "4-7"));
  ASSERT_THAT(plan.remarks, Not(IsEmpty()));
  EXPECT_THAT(plan.remarks[0], AllOf(HasSubstr("no network interface is chosen"), HasSubstr("nothing-like-that0")));
  EXPECT_THAT(names_of(plan), Not(Contains("GLOO_SOCKET_IFNAME")));
}

TEST(PlanCommand, TasksThatCannotBePlacedTogetherLearnTheNetwork) {
  PlanQuestion question = question_of({});
  const auto answer = [&](Variables variables = {}) {
    const base::Environment environment{std::move(variables)};
    return make_network_plan(question, {.interface = {.name = "ib0"}, .remarks = {"x"}}, environment);
  };
  const NodePlan plan = answer();
  ASSERT_EQ(plan.tasks.size(), 1U);
  EXPECT_EQ(plan.tasks[0].binding, std::nullopt);
  EXPECT_EQ(value_of(plan.tasks[0], "NCCL_SOCKET_IFNAME"), "=ib0");
  EXPECT_EQ(value_of(plan.tasks[0], "GLOO_SOCKET_IFNAME"), "ib0");
  EXPECT_THAT(plan.remarks, ElementsAre("x"));
  EXPECT_THAT(names_of(answer({{"GLOO_SOCKET_IFNAME", "eth0"}})), ElementsAre("NCCL_SOCKET_IFNAME"));
  const std::vector<base::NcclConf> conf{
      {.path = "/etc/nccl.conf", .digest = 0, .settings = {{"NCCL_SOCKET_IFNAME", "ib"}}}};
  const NetworkChoice chosen{.interface = {.name = "ib0"}};
  EXPECT_THAT(names_of(make_network_plan(question, chosen, base::Environment{{}}, conf)),
              ElementsAre("GLOO_SOCKET_IFNAME"));
  const NodePlan placed = make_node_plan(two_packages(), question_of({"0-7"}), chosen, base::Environment{{}}, conf);
  EXPECT_THAT(names_of(placed), testing::AllOf(Contains("GLOO_SOCKET_IFNAME"), Not(Contains("NCCL_SOCKET_IFNAME"))));
  question.backend = "gloo";
  EXPECT_THAT(names_of(answer()), ElementsAre("GLOO_SOCKET_IFNAME"));
}

TEST(PlanCommand, QuestionsThatMakeNoSenseAreErrors) {
  EXPECT_THROW(plan_of(two_packages(), question_of({})), Error);
  EXPECT_THROW(plan_of(two_packages(), question_of({"0-3", "64"})), Error) << "a processor that is not there";
  PlanQuestion question = question_of({"0-3"});
  question.resources[0] = base::to_bytes("nonsense");
  EXPECT_THROW(plan_of(two_packages(), question), Error);
}

}  // namespace
}  // namespace ddp::srun_plugin
