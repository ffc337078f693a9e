// What ranks of one machine would get, as values that the printers read.
#include "support/message_check.hpp"
#include "support/topology_samples.hpp"
#include "topo/job_gather.hpp"
#include "topo/json_report.hpp"
#include "topo/report_model.hpp"
#include "unit/tools/sample_reports.hpp"

namespace ddp::tools {
namespace {

const base::Environment kEmpty{{}};

TEST(DefaultNumRanks, OneForEachGpuElseOneForEachNumaNode) {
  EXPECT_EQ(default_num_ranks(test::two_packages(), kEmpty, {}), 4);
  EXPECT_EQ(default_num_ranks(test::two_packages(), base::Environment{{{"CUDA_VISIBLE_DEVICES", "1,3"}}}, {}), 2);
  EXPECT_EQ(default_num_ranks(test::two_packages(), base::Environment{{{"CUDA_VISIBLE_DEVICES", ""}}}, {}), 2);
  EXPECT_EQ(default_num_ranks(test::four_cores(), kEmpty, {}), 1);

  Topology::Parts parts = test::two_package_parts();
  parts.gpus[1].visible = false;
  EXPECT_EQ(default_num_ranks(Topology::from_parts(parts), kEmpty, {}), 3);
  parts.gpus.clear();
  EXPECT_EQ(default_num_ranks(Topology::from_parts(parts), kEmpty, {}), 2);
  EXPECT_EQ(default_num_ranks(Topology::from_parts(parts), kEmpty, CpuSet{{0, 1}}), 1);
  parts.numa_nodes.push_back({.os_index = 9, .package = -1, .memory_bytes = 1});
  EXPECT_EQ(default_num_ranks(Topology::from_parts(parts), kEmpty, {}), 2) << "memory without processors";
}

TEST(DescribeMachine, PlacesEveryRankAndDerivesItsSettings) {
  MachineQuestion question;
  question.num_ranks = 4;
  question.environment = base::Environment{{{"OMP_NUM_THREADS", "99"}}};
  question.host = "n1";
  const Report report = describe_machine(test::two_packages(), question);
  EXPECT_FALSE(report.job);
  ASSERT_EQ(report.kinds.size(), 1U);
  const NodeKind& kind = report.kinds[0];
  EXPECT_THAT(kind.hosts, ElementsAre("n1"));
  EXPECT_THAT(kind.ranks(), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(kind.unused_gpus(), IsEmpty());
  for (const RankRow& row : kind.rows) {
    EXPECT_EQ(row.placement.gpu, row.local_rank);
    EXPECT_FALSE(row.actual);
    const auto threads = std::find_if(row.settings.begin(), row.settings.end(),
                                      [](const SettingRow& setting) { return setting.name == "OMP_NUM_THREADS"; });
    ASSERT_NE(threads, row.settings.end());
    EXPECT_TRUE(threads->by_user);
    EXPECT_EQ(threads->value, "99");
    EXPECT_NE(threads->conflict, "");
  }
}

TEST(DescribeMachine, StaysInsideWhatIsAllowed) {
  MachineQuestion question;
  question.num_ranks = 2;
  question.allowed = CpuSet{{0, 1, 8, 9}};
  const Report report = describe_machine(test::two_packages(), question);
  EXPECT_EQ(report.kinds[0].allowed, question.allowed);
  for (const RankRow& row : report.kinds[0].rows) EXPECT_TRUE(question.allowed.contains(row.placement.cpus));
  EXPECT_THAT(report.kinds[0].hosts, IsEmpty());
}

TEST(DescribeMachine, GpusInTheOrderOfTheEnvironment) {
  MachineQuestion question;
  question.num_ranks = 2;
  question.environment = base::Environment{{{"CUDA_VISIBLE_DEVICES", "3,0"}}};
  const Report report = describe_machine(test::two_packages(), question);
  EXPECT_EQ(report.kinds[0].rows[0].placement.gpu, 3);
  EXPECT_EQ(report.kinds[0].rows[1].placement.gpu, 0);
  EXPECT_THAT(report.kinds[0].unused_gpus(), ElementsAre(1, 2));
}

TEST(FindRank, ByTheJobsNumbers) {
  const Report report = test::sample_job();
  EXPECT_EQ(find_rank(report, 11).second->local_rank, 3);
  EXPECT_EQ(find_rank(report, 4).second->local_rank, 0);
  EXPECT_TRUE(test::error_of([&] { find_rank(report, 12); }));
}

}  // namespace

// Reports arrive as sent, and malformed bytes of another rank do no harm.

namespace {

RankReport sample() {
  RankReport report;
  report.rank = 7;
  report.local_rank = 3;
  report.host = "n1";
  report.given = CpuSet{{0, 1, 64}};
  report.binding = {.cpus = CpuSet{{0, 1}}, .preferred_memory = -1};
  report.visible_gpus = {0, 1, 2};
  report.named_gpus = std::vector<int>{2, 0};
  report.environment = {{"OMP_NUM_THREADS", "2"}, {"NCCL_DEBUG", ""}};
  report.interface = {"ib0", "10.0.0.1", "it routes to n2"};
  report.nccl_conf = {{.path = "/etc/nccl.conf", .digest = 0, .settings = {{"NCCL_IB_HCA", "mlx5"}}}};
  report.processor_thousandths = 1500;
  report.processors_group = "/job";
  return report;
}

TEST(RankReport, IsAMessage) {
  tests::check_message<RankReport>();
  EXPECT_EQ(base::decode<RankReport>(base::encode(sample())), sample());
}

TEST(RankReport, EveryWrongByteIsAnErrorOrAnotherReport) {
  const Bytes bytes = base::encode(sample());
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    Bytes wrong = bytes;
    wrong[i] ^= std::byte{0xff};
    const auto error = test::error_of([&] { EXPECT_NE(base::decode<RankReport>(wrong), sample()) << i; });
    if (error) {
      EXPECT_EQ(error->code(), ErrorCode::protocol) << i;
    }
  }
}

TEST(RankReport, IsBounded) {
  constexpr std::size_t kMostBytes = std::size_t{64} << 10U;
  RankReport report = sample();
  report.environment["OMP_PLACES"] = std::string(kMostBytes, 'x');
  const Error error = ddp::test::thrown_by([&] { base::encode(report); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_TRUE(test::error_of([] { base::decode<RankReport>(Bytes(kMostBytes + 1)); }));
}

TEST(RankReport, SecretsStayWhereTheyAre) {
  const base::Environment environment{{{"NCCL_DEBUG", "INFO"},
                                       {"CUDA_VISIBLE_DEVICES", "0"},
                                       {"OMP_NUM_THREADS", "2"},
                                       {"DDP_BIND", "numa"},
                                       {"AWS_SECRET_ACCESS_KEY", "s"},
                                       {"MY_NCCL_TOKEN", "s"},
                                       {"PATH", "/bin"}}};
  EXPECT_THAT(reported_variables(environment), UnorderedElementsAre(Key("NCCL_DEBUG"), Key("CUDA_VISIBLE_DEVICES"),
                                                                    Key("OMP_NUM_THREADS"), Key("DDP_BIND")));
}

}  // namespace

// The document has the fields that docs/reference/ddp-info.md promises, with their types.

namespace {

using nlohmann::json;

json document(const Report& report) { return json::parse(format_json(report)); }

/// The names of the members, without order.
std::set<std::string> members(const json& object) {
  std::set<std::string> names;
  for (const auto& [name, value] : object.items()) names.insert(name);
  return names;
}

using Names = std::set<std::string>;

TEST(JsonReport, HasTheDocumentedMembers) {
  const json top = document(test::sample_report());
  EXPECT_EQ(members(top), (Names{"schema", "libddp", "job", "bind", "gpu_visibility", "nodes"}));
  EXPECT_EQ(top["schema"], "ddp-info-topo/1");
  EXPECT_TRUE(top["job"].is_null());
  const json& node = top["nodes"][0];
  EXPECT_EQ(members(node), (Names{"hosts", "allowed_cpus", "unused_gpus", "machine", "ranks"}));
  const json& machine = node["machine"];
  EXPECT_EQ(members(machine), (Names{"source", "shape", "cpus", "packages", "numa_nodes", "cores", "gpus", "nics",
                                     "interfaces", "distances"}));
  EXPECT_EQ(members(machine["packages"][0]), (Names{"os_index", "cpus"}));
  EXPECT_EQ(members(machine["numa_nodes"][0]), (Names{"os_index", "package", "cpus", "memory_bytes"}));
  EXPECT_EQ(members(machine["cores"][0]), (Names{"numa_node", "package", "cpus"}));
  EXPECT_EQ(members(machine["gpus"][0]), (Names{"index", "pci", "vendor", "model", "uuid", "vendor_index", "os_names",
                                                "mig", "visible", "hidden_reason", "locality"}));
  EXPECT_EQ(members(machine["nics"][0]),
            (Names{"index", "name", "interface", "rdma_device", "pci", "model", "ports", "bonded", "rate_gbps",
                   "fabric", "usable", "unusable_reason", "virtual_function", "locality"}));
  EXPECT_EQ(members(machine["gpus"][0]["locality"]), (Names{"package", "numa_node", "cpus", "bridges"}));
  EXPECT_EQ(members(machine["distances"]), (Names{"gpu_gpu", "gpu_nic", "gpu_link_mb_per_s"}));
  const json& rank = node["ranks"][0];
  EXPECT_EQ(members(rank), (Names{"ranks", "local_rank", "gpu", "gpu_shared", "nics", "path", "numa_nodes", "cpus",
                                  "num_cores", "cores_shared", "settings", "decisions"}));
  EXPECT_EQ(members(rank["ranks"][0]), (Names{"rank", "host"}));
  EXPECT_EQ(members(rank["settings"][0]), (Names{"name", "value", "reason", "by_user", "conflict"}));
  EXPECT_EQ(members(rank["decisions"][0]), (Names{"subject", "chosen", "reason", "alternatives"}));
}

TEST(JsonReport, SaysWhatTheTableSays) {
  const json node = document(test::sample_report())["nodes"][0];
  const json& rank = node["ranks"][3];
  EXPECT_EQ(rank["gpu"], 3);
  EXPECT_EQ(rank["nics"], json::array({2}));
  EXPECT_EQ(rank["path"], "PIX");
  EXPECT_EQ(rank["cpus"], "6-7,14-15");
  EXPECT_EQ(rank["settings"][1]["by_user"], true);
  EXPECT_EQ(rank["settings"][1]["conflict"], "this rank has only 4 hardware threads");
  EXPECT_TRUE(rank["settings"][0]["conflict"].is_null());
  EXPECT_EQ(rank["decisions"][0]["alternatives"][0], "ib0: SYS, further than PIX");
  const json& machine = node["machine"];
  EXPECT_EQ(machine["gpus"].size(), 4U);
  EXPECT_EQ(machine["distances"]["gpu_gpu"][0], json::array({"X", "PIX", "SYS", "SYS"}));
  EXPECT_EQ(machine["distances"]["gpu_nic"][2], json::array({"SYS", "SYS", "PIX"}));
  EXPECT_EQ(machine["nics"][1]["usable"], false);
  EXPECT_TRUE(machine["nics"][1]["rate_gbps"].is_null());
  EXPECT_EQ(machine["nics"][1]["unusable_reason"], "it is down");
  EXPECT_TRUE(machine["gpus"][0]["uuid"].is_null());
}

TEST(JsonReport, OfAJob) {
  const json top = document(test::sample_job());
  EXPECT_EQ(members(top["job"]), (Names{"launcher", "reason", "world_size"}));
  EXPECT_EQ(top["job"]["world_size"], 12);
  const json& node = top["nodes"][0];
  EXPECT_EQ(node["hosts"], json::array({"n1", "n2", "n3"}));
  const json& rank = node["ranks"][0];
  EXPECT_EQ(rank["ranks"][2]["rank"], 8);
  EXPECT_EQ(members(rank["ranks"][2]["interface"]), (Names{"name", "address", "reason"}));
  EXPECT_EQ(members(rank["actual"]), (Names{"binding", "sentence", "given_cpus", "cpus", "preferred_memory"}));
  EXPECT_EQ(rank["actual"]["binding"], "not_bound");
  EXPECT_TRUE(rank["actual"]["preferred_memory"].is_null());
  EXPECT_EQ(node["ranks"][3]["actual"]["preferred_memory"], 1);
  EXPECT_TRUE(rank["settings"][0]["actual"].is_null());
  EXPECT_TRUE(rank["settings"][0]["by_user"].is_null());
  EXPECT_EQ(node["ranks"][1]["settings"][1]["actual"], "2");
}

TEST(JsonReport, TextThatIsNoUtf8IsReplaced) {
  Report report = test::sample_report();
  Topology::Parts parts = test::two_package_parts();
  parts.gpus[0].model =
      "a\xff"
      "b\"\n";
  report.kinds[0].topology = Topology::from_parts(std::move(parts));
  EXPECT_EQ(document(report)["nodes"][0]["machine"]["gpus"][0]["model"],
            "a\xef\xbf\xbd"
            "b\"\n");
}

}  // namespace

// What ranks have compared with what they should have, and which nodes are alike.

namespace {

/// A node of two_packages() whose @p num_ranks ranks may use everything and have nothing set.
NodeReports node(int first_rank, int num_ranks = 4) {
  NodeReports reports{.topology = test::two_packages()};
  for (int i = 0; i < num_ranks; ++i) {
    RankReport report;
    report.rank = first_rank + i;
    report.local_rank = i;
    report.host = "n" + std::to_string(first_rank);
    report.given = reports.topology.cpus();
    report.binding.cpus = report.given;
    report.visible_gpus = {0, 1, 2, 3};
    report.interface = {"ib0", "10.0.0.1", "it routes to n" + std::to_string(first_rank + 1)};
    reports.ranks.push_back(report);
  }
  return reports;
}

/// Gives each rank the mask that a free choice would give it.
void bind_as_placed(NodeReports& reports) {
  PlacementRequest request;
  request.num_ranks = static_cast<int>(reports.ranks.size());
  const auto placements = place(reports.topology, request);
  for (std::size_t i = 0; i < placements.size(); ++i) {
    reports.ranks[i].given = reports.ranks[i].binding.cpus = placements[i].cpus;
  }
}

Report describe(const std::vector<NodeReports>& nodes, BindPolicy policy = BindPolicy::numa) {
  int world_size = 0;
  for (const NodeReports& each : nodes) world_size += static_cast<int>(each.ranks.size());
  return describe_job(nodes, {.launcher = "pmix", .reason = "", .world_size = world_size}, policy,
                      topology::GpuVisibility::all);
}

const SettingRow* find_setting(const RankRow& row, std::string_view name) {
  const auto found = std::find_if(row.settings.begin(), row.settings.end(),
                                  [&](const SettingRow& setting) { return setting.name == name; });
  return found == row.settings.end() ? nullptr : &*found;
}

TEST(DescribeJob, EqualNodesAreFolded) {
  const Report report = describe({node(0), node(4), node(8)});
  ASSERT_EQ(report.kinds.size(), 1U);
  EXPECT_THAT(report.kinds[0].hosts, ElementsAre("n0", "n4", "n8"));
  EXPECT_EQ(report.kinds[0].ranks().size(), 12U);
  ASSERT_EQ(report.kinds[0].rows[2].ranks.size(), 3U);
  EXPECT_EQ(report.kinds[0].rows[2].ranks[1].rank, 6);
  EXPECT_EQ(report.kinds[0].rows[2].ranks[1].interface.reason, "it routes to n5");
}

TEST(DescribeJob, AnyDifferenceKeepsNodesApart) {
  NodeReports other = node(4);
  other.ranks[3].binding.cpus = CpuSet{{0}};
  EXPECT_EQ(describe({node(0), other}).kinds.size(), 2U);
  other = node(4);
  other.ranks[0].environment["OMP_NUM_THREADS"] = "3";
  EXPECT_EQ(describe({node(0), other}).kinds.size(), 2U);
  EXPECT_EQ(describe({node(0), node(4, 2)}).kinds.size(), 2U);
  other = node(4);
  Topology::Parts parts = test::two_package_parts();
  parts.nics[0].usable = false;
  other.topology = Topology::from_parts(std::move(parts));
  EXPECT_EQ(describe({node(0), other}).kinds.size(), 2U);
}

TEST(DescribeJob, KindsAreOrderedByTheirFirstRank) {
  NodeReports first = node(0, 2);
  const Report report = describe({node(2), first, node(6)});
  ASSERT_EQ(report.kinds.size(), 2U);
  EXPECT_EQ(report.kinds[0].ranks().front(), 0);
}

TEST(DescribeJob, SaysWhetherRanksAreBound) {
  NodeReports bound = node(0);
  bind_as_placed(bound);
  const Report bound_report = describe({bound});
  for (const RankRow& row : bound_report.kinds[0].rows) {
    EXPECT_EQ(row.actual->state, BindingState::as_placed);
    EXPECT_EQ(row.actual->sentence, "bound as placed");
  }
  const Report free_report = describe({node(0)});
  for (const RankRow& row : free_report.kinds[0].rows) EXPECT_EQ(row.actual->state, BindingState::not_bound);
  const Report unasked = describe({node(0)}, BindPolicy::none);
  for (const RankRow& row : unasked.kinds[0].rows) EXPECT_EQ(row.actual->sentence, "not bound, as asked");
}

TEST(DescribeJob, SaysThatTheLauncherGaveFewerOrFartherCores) {
  NodeReports reports = node(0);
  bind_as_placed(reports);
  const auto give = [&](std::size_t rank, const CpuSet& mask) {
    reports.ranks[rank].given = reports.ranks[rank].binding.cpus = mask;
  };
  give(0, reports.topology.numa_nodes()[0].cpus);
  give(1, CpuSet{{3}});
  give(2, CpuSet{{0, 1, 8, 9}});
  give(3, reports.topology.numa_nodes()[1].cpus);
  const Report report = describe({reports});
  const auto& rows = report.kinds[0].rows;
  EXPECT_EQ(rows[1].actual->state, BindingState::narrower);
  EXPECT_EQ(rows[1].actual->sentence, "narrower mask from the launcher: 3");
  EXPECT_EQ(rows[2].placement.gpu, 2);
  EXPECT_EQ(rows[2].actual->state, BindingState::narrower) << "its mask is on the other package than its GPU";
}

TEST(DescribeJob, WiderAndOtherMasks) {
  NodeReports reports = node(0);
  reports.ranks[0].binding.cpus = reports.topology.numa_nodes()[0].cpus;
  reports.ranks[1].binding.cpus = CpuSet{{7}};
  const Report report = describe({reports});
  EXPECT_EQ(report.kinds[0].rows[0].actual->state, BindingState::wider);
  EXPECT_EQ(report.kinds[0].rows[1].actual->state, BindingState::elsewhere);
}

TEST(DescribeJob, ComparesVariablesWithWhatTheyShouldBe) {
  NodeReports reports = node(0);
  for (RankReport& report : reports.ranks) report.environment["OMP_NUM_THREADS"] = "99";
  const Report report = describe({reports});
  const RankRow& row = report.kinds[0].rows[0];
  const SettingRow* threads = find_setting(row, "OMP_NUM_THREADS");
  ASSERT_NE(threads, nullptr);
  EXPECT_EQ(threads->value, "2");
  EXPECT_EQ(threads->actual, "99");
  EXPECT_NE(threads->conflict, "");
  const SettingRow* sockets = find_setting(row, "GLOO_SOCKET_IFNAME");
  ASSERT_NE(sockets, nullptr);
  EXPECT_EQ(sockets->value, "ib0");
  EXPECT_FALSE(sockets->actual);
}

TEST(DescribeJob, WhatAFileOfNcclHasIsNotMissed) {
  NodeReports reports = node(0);
  for (RankReport& report : reports.ranks)
    report.nccl_conf = {{.path = "/etc/nccl.conf", .digest = 0, .settings = {{"NCCL_SOCKET_IFNAME", "ib"}}}};
  const Report report = describe({reports});
  const SettingRow* sockets = find_setting(report.kinds[0].rows[0], "NCCL_SOCKET_IFNAME");
  ASSERT_NE(sockets, nullptr);
  EXPECT_EQ(sockets->value, "ib");
  EXPECT_TRUE(sockets->by_user);
  EXPECT_EQ(sockets->reason, "/etc/nccl.conf has it");
}

TEST(DescribeJob, ThreadsFollowTheQuotaThatRanksShare) {
  NodeReports reports = node(0);
  for (RankReport& report : reports.ranks) {
    report.processor_thousandths = 1000 * reports.ranks.size();
    report.processors_group = "/job";
  }
  const Report report = describe({reports});
  EXPECT_EQ(find_setting(report.kinds[0].rows[0], "OMP_NUM_THREADS")->value, "1");
}

TEST(DescribeJob, ANamedOrderOfGpusIsKept) {
  NodeReports reports = node(0, 2);
  for (RankReport& report : reports.ranks) {
    report.named_gpus = std::vector<int>{3, 0};
    report.environment["CUDA_VISIBLE_DEVICES"] = "3,0";
  }
  const Report report = describe({reports});
  EXPECT_EQ(report.kinds[0].rows[0].placement.gpu, 3);
  EXPECT_EQ(report.kinds[0].rows[1].placement.gpu, 0);
  EXPECT_EQ(find_setting(report.kinds[0].rows[0], "CUDA_VISIBLE_DEVICES")->conflict, "");
}

TEST(DescribeJob, RanksWithGpusOfTheirOwn) {
  NodeReports reports = node(0, 3);
  for (std::size_t i = 0; i < 3; ++i) {  // srun --gpus-per-task=1: each sees one GPU, and calls it 0
    reports.ranks[i].visible_gpus = {static_cast<int>(3 - i)};
    reports.ranks[i].named_gpus = std::vector<int>{static_cast<int>(3 - i)};
    reports.ranks[i].environment["CUDA_VISIBLE_DEVICES"] = "0";
  }
  const Report report = describe({reports});
  const NodeKind& kind = report.kinds[0];
  EXPECT_FALSE(kind.topology.gpus()[0].visible);
  EXPECT_NE(kind.topology.gpus()[0].hidden_reason, "");
  EXPECT_TRUE(kind.topology.gpus()[3].visible);
  for (int i = 0; i < 3; ++i) {
    const RankRow& row = kind.rows[static_cast<std::size_t>(i)];
    EXPECT_EQ(row.placement.gpu, 3 - i);
    ASSERT_NE(find_setting(row, "CUDA_VISIBLE_DEVICES"), nullptr);
    EXPECT_EQ(find_setting(row, "CUDA_VISIBLE_DEVICES")->conflict, "") << i;
  }
}

TEST(DescribeJob, AListTooShortForTheRanksThatShareItIsAConflict) {
  NodeReports reports = node(0, 3);
  for (RankReport& report : reports.ranks) {
    report.named_gpus = std::vector<int>{1};
    report.environment["CUDA_VISIBLE_DEVICES"] = "1";
  }
  const Report report = describe({reports});
  EXPECT_NE(find_setting(report.kinds[0].rows[0], "CUDA_VISIBLE_DEVICES")->conflict, "");
}

TEST(DescribeJob, AGpuThatTheNodeDoesNotHave) {
  NodeReports reports = node(0);
  reports.ranks[2].visible_gpus = {4};
  const Error error = ddp::test::thrown_by([&] { describe({reports}); });
  EXPECT_EQ(error.code(), ErrorCode::mismatch);
  EXPECT_THAT(error.ranks(), ElementsAre(2));
}

}  // namespace

}  // namespace ddp::tools
