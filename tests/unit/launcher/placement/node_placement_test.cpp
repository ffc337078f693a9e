// How ddprun counts and places the ranks of a node, on machines of which the tests know everything.
#include "placement/node_placement.hpp"

#include "outcome/exit_error.hpp"
#include "unit/topology/machines.hpp"

namespace ddp::launcher {
namespace {

using Kind = RanksPerNode::Kind;
using Variables = std::map<std::string, std::string, std::less<>>;

LaunchOptions options_of(Kind kind, int number = 0) {
  LaunchOptions options;
  options.nproc = {.kind = kind, .number = number};
  return options;
}

/// Processors 0 to 63, 8 GPUs.
Topology eight_gpus() { return Topology::from_parts(ddp::test::eight_gpu_machine()); }

NodePlacement placed(const LaunchOptions& options, Variables variables = {}, const char* allowed = "0-63") {
  return NodePlacement(options, base::Environment{std::move(variables)}, eight_gpus(), CpuSet::parse(allowed));
}

std::vector<std::string> bindings_of(const std::vector<topology::RankPlan>& plans) {
  std::vector<std::string> bindings;
  for (const auto& plan : plans) bindings.push_back(plan.binding ? plan.binding->cpus.to_string() : "unbound");
  return bindings;
}

std::vector<std::string> values_of(const std::vector<topology::RankPlan>& plans, std::string_view name) {
  std::vector<std::string> values;
  for (const auto& plan : plans) {
    const auto found = std::find_if(plan.settings.begin(), plan.settings.end(),
                                    [&](const topology::Setting& setting) { return setting.name == name; });
    values.push_back(found == plan.settings.end() ? "-" : (found->by_user ? "(user) " : "") + found->value);
  }
  return values;
}

TEST(NodePlacement, RanksAreCountedByGpusOrProcessors) {
  EXPECT_EQ(placed(options_of(Kind::number, 3)).nproc(), 3);
  EXPECT_EQ(placed(options_of(Kind::gpus)).nproc(), 8);
  EXPECT_EQ(placed(options_of(Kind::automatic)).nproc(), 8);
  EXPECT_EQ(placed(options_of(Kind::cpus), {}, "0-4").nproc(), 5);
  EXPECT_EQ(placed(options_of(Kind::gpus), {{"CUDA_VISIBLE_DEVICES", "3,1"}}).nproc(), 2);
  const NodePlacement cpus_only(options_of(Kind::automatic), base::Environment{{}},
                                Topology::from_parts(ddp::test::cpu_machine()), CpuSet::parse("0-2"));
  EXPECT_EQ(cpus_only.nproc(), 3);
}

TEST(NodePlacement, ProcessorsAreThoseThatACgroupHasTimeFor) {
  const auto of = [](const LaunchOptions& options, double processors) {
    return NodePlacement(options, base::Environment{{}}, Topology::from_parts(ddp::test::cpu_machine()),
                         CpuSet::parse("0-2"), {.processors = processors, .processors_group = "/x", .processes = -1});
  };
  for (const Kind kind : {Kind::cpus, Kind::automatic}) {
    EXPECT_EQ(of(options_of(kind), 2.5).nproc(), 2);
    EXPECT_EQ(of(options_of(kind), 0.5).nproc(), 1);
    EXPECT_EQ(of(options_of(kind), 64).nproc(), 3);
  }
  const NodePlacement two = of(options_of(Kind::number, 2), 2);
  EXPECT_THAT(values_of(two.plan({}), "OMP_NUM_THREADS"), Each("1"));
  EXPECT_THAT(values_of(of(options_of(Kind::number, 1), 2).plan({}), "OMP_NUM_THREADS"), Each("2"));
}

TEST(NodePlacement, NcclsFilesKeepWhatTheySay) {
  const NodePlacement placement(options_of(Kind::number, 1), base::Environment{{}}, eight_gpus(), CpuSet::parse("0-63"),
                                {},
                                {{.path = "/etc/nccl.conf", .digest = 0, .settings = {{"NCCL_SOCKET_IFNAME", "ib"}}}});
  const auto plans = placement.plan({.name = "ib3", .reason = "it routes"});
  EXPECT_THAT(values_of(plans, "NCCL_SOCKET_IFNAME"), ElementsAre("(user) ib"));
  EXPECT_THAT(values_of(plans, "GLOO_SOCKET_IFNAME"), ElementsAre("ib3"));
}

TEST(NodePlacement, GpusOfOtherJobsAreNotCounted) {
  Topology::Parts parts = ddp::test::eight_gpu_machine();
  for (Gpu& gpu : parts.gpus) gpu.visible = gpu.index == 2 || gpu.index == 5;  // what the step's device cgroup leaves
  for (const Kind kind : {Kind::gpus, Kind::automatic}) {
    const NodePlacement two(options_of(kind), base::Environment{{}}, Topology::from_parts(parts),
                            CpuSet::parse("0-63"));
    EXPECT_EQ(two.nproc(), 2);
  }
  for (Gpu& gpu : parts.gpus) gpu.visible = false;
  EXPECT_THROW(
      NodePlacement(options_of(Kind::gpus), base::Environment{{}}, Topology::from_parts(parts), CpuSet::parse("0-63")),
      ExitError);
}

TEST(NodePlacement, WithoutGpusNoneCanBeCounted) {
  for (const char* machine : {"none visible", "unknown"}) {
    const bool known = std::string(machine) != "unknown";
    try {
      NodePlacement(options_of(Kind::gpus), base::Environment{{{"CUDA_VISIBLE_DEVICES", ""}}},
                    known ? std::optional{eight_gpus()} : std::nullopt, CpuSet::parse("0-3"));
      ADD_FAILURE() << machine;
    } catch (const ExitError& error) {
      EXPECT_EQ(error.exit_status(), kExitUsage);
      EXPECT_THAT(error.what(), HasSubstr("--nproc-per-node=gpu"));
    }
  }
}

TEST(NodePlacement, OptionsBecomeThePlan) {
  LaunchOptions options = options_of(Kind::number, 2);
  options.bind = BindPolicy::core;
  options.gpus = topology::GpuVisibility::one;
  const auto plans = placed(options).plan({.name = "ib3", .reason = "it routes"});
  EXPECT_THAT(bindings_of(plans), ElementsAre("0,32", "16,48"));
  EXPECT_THAT(values_of(plans, "CUDA_VISIBLE_DEVICES"), ElementsAre("0", "4"));
  EXPECT_THAT(values_of(plans, "GLOO_SOCKET_IFNAME"), Each("ib3"));
  options.bind = BindPolicy::none;
  options.gpus = topology::GpuVisibility::none;
  const auto left_alone = placed(options).plan({});
  EXPECT_THAT(bindings_of(left_alone), Each("unbound"));
  EXPECT_THAT(values_of(left_alone, "CUDA_VISIBLE_DEVICES"), Each("-"));
  EXPECT_THAT(values_of(left_alone, "GLOO_SOCKET_IFNAME"), Each("-"));
}

TEST(NodePlacement, RanksStayInsideDdprunsMask) {
  const auto plans = placed(options_of(Kind::number, 2), {}, "8-11").plan({});
  EXPECT_THAT(bindings_of(plans), ElementsAre("8-9", "10-11"));
}

TEST(NodePlacement, UsersVariablesAreKept) {
  const auto plans =
      placed(options_of(Kind::number, 2), {{"OMP_NUM_THREADS", "5"}, {"CUDA_VISIBLE_DEVICES", "7,2"}}).plan({});
  EXPECT_THAT(values_of(plans, "OMP_NUM_THREADS"), Each("(user) 5"));
  EXPECT_EQ(plans[0].placement.gpu, 7);
  EXPECT_EQ(plans[1].placement.gpu, 2);
}

TEST(NodePlacement, RanksOfAnUnknownMachineAreLeftAlone) {
  const NodePlacement unknown(options_of(Kind::number, 2), base::Environment{{}}, std::nullopt, CpuSet::parse("0-3"));
  EXPECT_EQ(unknown.topology_xml(), "");
  const auto plans = unknown.plan({.name = "eth0"});
  ASSERT_EQ(plans.size(), 2U);
  for (const auto& plan : plans) {
    EXPECT_EQ(plan.binding, std::nullopt);
    EXPECT_THAT(plan.settings, IsEmpty());
    EXPECT_EQ(plan.summary, "not placed");
  }
}

TEST(NodePlacement, AMachineThatDoesNotFitIsWarnedOfOnce) {
  testing::internal::CaptureStderr();
  const NodePlacement elsewhere = placed(options_of(Kind::number, 2), {}, "100-103");
  EXPECT_THAT(bindings_of(elsewhere.plan({})), Each("unbound"));
  EXPECT_THAT(bindings_of(elsewhere.plan({})), Each("unbound"));
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_THAT(text, AllOf(HasSubstr("ddprun: warning: ranks are neither bound"), HasSubstr("100-103")));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
}

TEST(NodePlacement, OnlyAMachineReadHereHasXml) {
  EXPECT_EQ(placed(options_of(Kind::number, 1)).topology_xml(), "");
  const NodePlacement here = NodePlacement::of_this_host(options_of(Kind::number, 1), base::Environment{{}});
  EXPECT_THAT(here.topology_xml(), HasSubstr("<topology"));
  EXPECT_TRUE(Binding::current().cpus.contains(here.plan({}).at(0).binding.value().cpus));
}

}  // namespace
}  // namespace ddp::launcher
