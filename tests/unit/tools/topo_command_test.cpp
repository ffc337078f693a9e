// The command line of `ddp-info topo` is strict, and its errors say what was meant.
#include "topo/topo_command.hpp"
#include "cli/exit_error.hpp"
#include "topo/text_report.hpp"
#include "topo/wording.hpp"
#include "unit/tools/sample_reports.hpp"

namespace ddp::tools {
namespace {

using Words = std::vector<std::string>;

TopoOptions parse(const Words& words) { return parse_topo_options(words); }

std::string complaint(const Words& words) {
  try {
    parse_topo_options(words);
  } catch (const cli::UsageError& error) {
    return error.what();
  }
  return "no error";
}

TEST(TopoOptions, NothingIsDecidedWithoutOptions) {
  const TopoOptions options = parse({});
  EXPECT_FALSE(options.nproc || options.bind || options.gpus || options.xml || options.export_file || options.explain ||
               options.json || options.no_job);
}

TEST(TopoOptions, ReadsEveryOptionAndTakesTheLast) {
  const TopoOptions options = parse(
      {"--nproc=3", "--nproc", "4", "--bind", "socket", "--gpus=one", "--xml=-odd=b", "--explain", "3", "--no_job"});
  EXPECT_EQ(options.nproc, 4);
  EXPECT_EQ(options.bind, BindPolicy::socket);
  EXPECT_EQ(options.gpus, topology::GpuVisibility::one);
  EXPECT_EQ(options.xml, "-odd=b");
  EXPECT_EQ(options.explain, 3);
  EXPECT_TRUE(options.no_job);
  EXPECT_TRUE(parse({"--json"}).json);
  EXPECT_EQ(parse({"--export", "-", "--no-job"}).export_file, "-");
  EXPECT_EQ(parse({"--nproc", "4096"}).nproc, kMaxRanks);
}

TEST(TopoOptions, RefusesWhatIsNoCount) {
  EXPECT_THAT(complaint({"--nproc", "0"}), HasSubstr("reading --nproc: '0' is too small; give a whole number from 1"));
  EXPECT_THAT(complaint({"--nproc", "-1"}), HasSubstr("'-1' is too small"));
  EXPECT_THAT(complaint({"--nproc", "4097"}), HasSubstr("'4097' is too large"));
  EXPECT_THAT(complaint({"--nproc", "99999999999999"}), HasSubstr("is out of range"));
  for (const char* text : {"x", "", " 2", "2 ", "2.0", "+2", "0x2"}) {
    EXPECT_THAT(complaint({std::string("--nproc=") + text}), HasSubstr("is not a whole number")) << text;
  }
  EXPECT_THAT(complaint({"--explain", "-1"}), HasSubstr("give a whole number from 0"));
}

TEST(TopoOptions, NamesMayBeAbbreviated) {
  const TopoOptions options = parse({"--np", "3", "--xm=a.xml", "--no_j", "--expl", "1"});
  EXPECT_EQ(options.nproc, 3);
  EXPECT_EQ(options.xml, "a.xml");
  EXPECT_TRUE(options.no_job);
  EXPECT_EQ(options.explain, 1);
  EXPECT_TRUE(parse({"--j"}).json);
  EXPECT_THAT(complaint({"--exp", "x"}),
              HasSubstr("option '--exp' is ambiguous; write one of --export, --explain in full"));
  EXPECT_THAT(complaint({"--n", "2"}), HasSubstr("ambiguous"));
  EXPECT_THAT(complaint({"--j=1"}), HasSubstr("option '--json' takes no value"));
  EXPECT_THAT(complaint({"--npr"}), HasSubstr("option '--nproc' needs a value"));
  EXPECT_THAT(complaint({"--explian", "1"}), HasSubstr("did you mean '--explain'?"));
  EXPECT_THAT(complaint({"--nothing-like-it"}), HasSubstr("'ddp-info topo --help' lists the options"));
  EXPECT_NE(parse({"--he"}).help, "");
}

TEST(TopoOptions, SuggestsTheClosestWord) {
  EXPECT_THAT(complaint({"--bind", "nums"}),
              HasSubstr("'nums' is not one of numa, core, socket, none; did you mean 'numa'?"));
  EXPECT_THAT(complaint({"--bind", "hyperthreads"}), HasSubstr("is not one of numa"));
  EXPECT_THAT(complaint({"--gpus", "al"}), HasSubstr("did you mean 'all'?"));
  EXPECT_THAT(complaint({"--nprok", "2"}), HasSubstr("unknown option '--nprok'; did you mean '--nproc'?"));
  EXPECT_THAT(complaint({"-n", "2"}), HasSubstr("unknown option '-n'"));
  EXPECT_THAT(complaint({"machine.xml"}), HasSubstr("'machine.xml' is not an option"));
}

TEST(TopoOptions, RefusesMissingAndUnwantedValues) {
  EXPECT_THAT(complaint({"--nproc"}), HasSubstr("option '--nproc' needs a value"));
  EXPECT_THAT(complaint({"--xml="}), HasSubstr("the file name is empty"));
  EXPECT_THAT(complaint({"--json=yes"}), HasSubstr("option '--json' takes no value"));
}

TEST(TopoOptions, RefusesCombinationsThatMeanNothing) {
  EXPECT_THAT(complaint({"--export", "a", "--xml", "b"}), HasSubstr("--export and --xml exclude each other"));
  EXPECT_THAT(complaint({"--json", "--export", "a"}), HasSubstr("--export and --json exclude each other"));
  EXPECT_THAT(complaint({"--json", "--explain", "0"}), HasSubstr("--json and --explain exclude each other"));
  EXPECT_THAT(complaint({"--nproc", "2", "--explain", "2"}), HasSubstr("there is no rank 2 among 2"));
  EXPECT_EQ(complaint({"--nproc", "2", "--explain", "1"}), "no error");
}

TEST(TopoOptions, HelpHasExamplesAndExitCodes) {
  const std::string help = parse({"--help"}).help;
  for (const char* part : {"Usage: ddp-info topo", "--nproc N", "Examples:", "Exit status:"}) {
    EXPECT_THAT(help, HasSubstr(part));
  }
}

}  // namespace

// Lists, models and machines in the words that users read.

namespace {

TEST(Wording, NumberLists) {
  EXPECT_EQ(number_list({}), "");
  EXPECT_EQ(number_list({5}), "5");
  EXPECT_EQ(number_list({3, 1, 0, 2, 8, 8}), "0-3,8");
  EXPECT_EQ(number_list({0, 1}), "0-1");
  EXPECT_EQ(number_list({0, 8, 16, 24}), "0-24:8");
  EXPECT_EQ(number_list({0, 8, 16}), "0,8,16");
  EXPECT_EQ(number_list({0, 2, 3, 4}), "0,2-4");
  EXPECT_EQ(number_list({1, 4, 7, 10, 11, 12}), "1-10:3,11-12");
}

TEST(Wording, HostLists) {
  EXPECT_EQ(host_list({}), "");
  EXPECT_EQ(host_list({"login"}), "login");
  EXPECT_EQ(host_list({"node1", "node3", "node2", "node7"}), "node[1-3,7]");
  EXPECT_EQ(host_list({"n08", "n09", "n10", "x1"}), "n[08-10],x1");
  EXPECT_EQ(host_list({"n9", "n10"}), "n[9-10]");
  EXPECT_EQ(host_list({"n9", "n010"}), "n[9,010]");
  EXPECT_EQ(host_list({"a1.b2.org", "a2.b2.org", "a1.c"}), "a[1-2].b2.org,a1.c");
  EXPECT_EQ(host_list({"same", "same"}), "same,same");
  EXPECT_EQ(host_list({"h99999999999999999998", "h99999999999999999999"}), "h99999999999[999999998-999999999]");
}

TEST(Wording, ModelsWithoutVendorAndChip) {
  EXPECT_EQ(short_model("NVIDIA H200"), "H200");
  EXPECT_EQ(short_model("GA100 [A100 SXM4 40GB]"), "A100 SXM4 40GB");
  EXPECT_EQ(short_model("NVIDIA Tesla V100"), "V100");
  EXPECT_EQ(short_model("10de:2335"), "10de:2335");
  EXPECT_EQ(short_model("AMD "), "AMD ");
  EXPECT_EQ(short_model("[]"), "[]");
}

TEST(Wording, Quantities) {
  EXPECT_EQ(counted(1, "GPU"), "1 GPU");
  EXPECT_EQ(counted(0, "GPU"), "0 GPUs");
  EXPECT_EQ(rate_text(400), "400 Gbit/s");
  EXPECT_EQ(rate_text(0.1), "0.1 Gbit/s");
  EXPECT_EQ(rate_text(0), "unknown rate");
  EXPECT_EQ(memory_text(256ULL << 30U), "256 GiB");
  EXPECT_EQ(memory_text(512ULL << 20U), "512 MiB");
}

TEST(Wording, MachineSummaries) {
  const Topology topology = test::two_packages();
  EXPECT_EQ(machine_summary(topology), "2 packages, 2 NUMA nodes, 8 cores, 16 PUs");
  EXPECT_EQ(gpu_summary(topology), "4x NVIDIA H200");
  EXPECT_EQ(nic_summary(topology), "2x ConnectX-7 400 Gbit/s, 1 not usable");
  EXPECT_EQ(gpu_summary(test::four_cores()), "");
  EXPECT_EQ(nic_summary(test::four_cores()), "");
  EXPECT_EQ(machine_summary(test::four_cores()), "1 package, 1 NUMA node, 4 cores, 4 PUs");
}

TEST(Wording, PathIsFromTheGpuElseFromTheNumaNode) {
  const Topology topology = test::two_packages();
  Placement placement = test::sample_row(1).placement;
  EXPECT_EQ(path_word(topology, placement), "PIX");
  placement.nics = {2};
  EXPECT_EQ(path_word(topology, placement), "SYS");
  placement.gpu.reset();
  EXPECT_EQ(path_word(topology, placement), "SYS");
  placement.nics = {0};
  EXPECT_EQ(path_word(topology, placement), "PHB");
  placement.numa_nodes.clear();
  EXPECT_EQ(path_word(topology, placement), "-");
  placement.nics.clear();
  EXPECT_EQ(path_word(topology, placement), "-");
}

TEST(Wording, NumaNodesByTheirSystemNumbers) {
  Topology::Parts parts = test::two_package_parts();
  parts.numa_nodes[1].os_index = 8;
  const Topology topology = Topology::from_parts(std::move(parts));
  EXPECT_EQ(numa_list(topology, {0, 1}), "0,8");
  EXPECT_EQ(numa_list(topology, {}), "-");
}

}  // namespace

// Columns line up, and nothing but printable ASCII comes out.

namespace {

TEST(TextGrid, ColumnsAreAsWideAsTheirWidestCellAndLinesEndWithoutBlanks) {
  TextGrid grid;
  grid.add_row({"A", "BB", "C"});
  grid.add_row({"aaaa", "", "c"});
  grid.add_row({"a", "b"});
  EXPECT_EQ(grid.to_string(),
            "A     BB  C\n"
            "aaaa      c\n"
            "a     b\n");
  EXPECT_EQ(grid.to_string(2).substr(0, 4), "  A ");
}

TEST(TextGrid, HoldsNothingThatSteersATerminal) {
  TextGrid grid;
  grid.add_row({"\x1b[31mred\n", "\xc3\xa9"});
  EXPECT_EQ(grid.to_string(), "?[31mred?  ??\n");
}

}  // namespace

// The exact table, for a machine and for a job.

namespace {

constexpr const char* kMachineTable = R"(what 4 ranks on a sample would get (--bind numa, --gpus all)

node n1: 2 packages, 2 NUMA nodes, 8 cores, 16 PUs
  GPUs: 4x NVIDIA H200
  NICs: 2x ConnectX-7 400 Gbit/s, 1 not usable

RANK  LOCAL  GPU                  NIC                PATH  NUMA  CORES  CPUS       OMP
0     0      0 0000:10:00.0 H200  ib0 (mlx5_0) 400G  PIX   0     2      0-1,8-9    2
1     1      1 0000:11:00.0 H200  ib0 (mlx5_0) 400G  PIX   0     2      2-3,10-11  2
2     2      2 0000:20:00.0 H200  ib1 (mlx5_1) 400G  PIX   1     2      4-5,12-13  2
3     3      3 0000:21:00.0 H200  ib1 (mlx5_1) 400G  PIX   1     2      6-7,14-15  99

settings of every rank:
  NCCL_IB_HCA="=mlx5_0:1,mlx5_1:1"  (= asks NCCL for exactly these names)

settings that differ:
  ranks 0-2  OMP_NUM_THREADS=2
  rank 3     OMP_NUM_THREADS=99  (kept: the environment has it)

warning: rank 3: OMP_NUM_THREADS=99: this rank has only 4 hardware threads

NICs that cannot be used:
  eth0  it is down

GPUs and NICs:
        ib0 (mlx5_0)  ib1 (mlx5_1)
  GPU0  PIX           SYS
  GPU1  PIX           SYS
  GPU2  SYS           PIX
  GPU3  SYS           PIX

GPUs:
        GPU0  GPU1  GPU2  GPU3
  GPU0  X     PIX   SYS   SYS
  GPU1  PIX   X     SYS   SYS
  GPU2  SYS   SYS   X     PIX
  GPU3  SYS   SYS   PIX   X

  X    the device itself
  PIX  at most one PCIe switch
  SYS  the connection between NUMA nodes
)";

TEST(Table, OfAMachine) { EXPECT_EQ(format_table(test::sample_report()), kMachineTable); }

TEST(Table, OfAJobFoldsEqualNodes) {
  const std::string text = format_table(test::sample_job());
  EXPECT_THAT(text, HasSubstr("job of 12 ranks on 3 nodes, started by pmix"));
  EXPECT_THAT(text, HasSubstr("nodes n[1-3] (3 nodes, ranks 0-11): 2 packages"));
  EXPECT_THAT(text, HasSubstr("0,4,8   0      0 0000:10:00.0 H200"));
  EXPECT_THAT(text, HasSubstr("0-1,8-9    2    not bound\n"));
  EXPECT_THAT(text, HasSubstr("2-3,10-11  2    bound as placed\n"));
  EXPECT_THAT(text, HasSubstr("ranks 0,4,8         NCCL_IB_HCA=\"=mlx5_0:1,mlx5_1:1\"  (not set)\n"));
  EXPECT_THAT(text, HasSubstr("warning: ranks 0,4,8: not bound to the cores that the table shows\n"));
  EXPECT_THAT(text, HasSubstr("warning: ranks 3,7,11: OMP_NUM_THREADS=99: this rank has only 4 hardware threads\n"));
}

TEST(Table, SaysWhatARankHasInstead) {
  Report report = test::sample_job();
  report.kinds[0].rows[1].settings[1].actual = "7";
  report.kinds[0].rows[2].actual->state = BindingState::narrower;
  report.kinds[0].rows[2].actual->sentence = "narrower mask from the launcher: 4";
  const std::string text = format_table(report);
  EXPECT_THAT(text, HasSubstr("OMP_NUM_THREADS=2                 (has '7')\n"));
  EXPECT_THAT(text, HasSubstr("2-3,10-11  7    bound as placed\n"));
  EXPECT_THAT(text, HasSubstr("narrower mask from the launcher: 4\n"));
  EXPECT_THAT(text, HasSubstr("warning: ranks 2,6,10: bound to other cores than the table shows\n"));
}

TEST(Table, ShowsRestrictionsAndWhatIsLeftOver) {
  Report report = test::sample_report();
  NodeKind& kind = report.kinds[0];
  kind.allowed = CpuSet{{0, 1}};
  Topology::Parts parts = test::two_package_parts();
  parts.gpus[3].visible = false;
  parts.gpus[3].hidden_reason = "its device file may not be opened (EPERM)";
  kind.topology = Topology::from_parts(std::move(parts));
  kind.rows.resize(2);
  kind.rows[1].placement.gpu = 0;
  kind.rows[1].placement.gpu_shared = true;
  kind.rows[1].placement.cores_shared = true;
  const std::string text = format_table(report);
  EXPECT_THAT(text, HasSubstr("  allowed: 2 of 16 PUs: 0-1\n"));
  EXPECT_THAT(text, HasSubstr("GPUs that no rank uses:\n  GPU 1 (0000:11:00.0)  H200\n  GPU 2 (0000:20:00.0)  H200\n"));
  EXPECT_THAT(text, HasSubstr("GPUs that may not be used:\n  GPU 3 (0000:21:00.0)  its device file may"));
  EXPECT_THAT(text, HasSubstr("0 0000:10:00.0 H200 (shared)"));
  EXPECT_THAT(text, HasSubstr("2 (shared)"));
}

TEST(Table, WithoutDevicesThereIsNoMatrix) {
  Report report;
  NodeKind kind{.topology = test::four_cores(), .allowed = test::four_cores().cpus()};
  RankRow row;
  row.ranks = {{.rank = 0, .host = ""}};
  row.placement.cpus = CpuSet{{0, 1, 2, 3}};
  row.placement.num_cores = 4;
  row.placement.numa_nodes = {0};
  kind.rows = {row};
  report.kinds = {kind};
  EXPECT_EQ(format_table(report),
            "what 1 rank on four cores would get (--bind numa, --gpus all)\n"
            "\n"
            "1 package, 1 NUMA node, 4 cores, 4 PUs\n"
            "  GPUs: none\n"
            "  NICs: none\n"
            "\n"
            "RANK  LOCAL  GPU  NIC  PATH  NUMA  CORES  CPUS  OMP\n"
            "0     0      -    -    -     0     4      0-3   -\n");
}

TEST(Table, WithoutGpusTheWordsOfThePathsAreExplainedBelowTheRanks) {
  Report report = test::sample_report();
  Topology::Parts parts = test::two_package_parts();
  parts.gpus.clear();
  NodeKind& kind = report.kinds[0];
  kind.topology = Topology::from_parts(std::move(parts));
  for (RankRow& row : kind.rows) row.placement.gpu.reset();
  const std::string text = format_table(report);
  const std::string word = path_word(kind.topology, kind.rows[0].placement);
  EXPECT_THAT(text, HasSubstr("\nPATH, from the rank's NUMA node to its NIC:\n  " + word + "  "));
  EXPECT_THAT(format_table(test::sample_report()), Not(HasSubstr("PATH, from")));
}

TEST(Table, TheMatricesOfEqualMachinesStandOnce) {
  Report report = test::sample_job();
  NodeKind other = report.kinds[0];
  report.kinds[0].hosts = {"n1"};
  other.hosts = {"n2"};
  report.kinds.push_back(other);
  const std::string text = format_table(report);
  EXPECT_THAT(text, HasSubstr("distances: as for n1\n"));
  EXPECT_EQ(text.find("GPUs and NICs:"), text.rfind("GPUs and NICs:"));
}

TEST(Table, IsPlainAscii) {
  Report report = test::sample_report();
  Topology::Parts parts = test::two_package_parts();
  parts.gpus[0].model = "H200 \x1b[2J\xc2\xae";
  parts.nics[1].unusable_reason = "d\xc3\xa9sactiv\xc3\xa9\n";
  parts.source = "file '\x07'";
  report.kinds[0].topology = Topology::from_parts(std::move(parts));
  report.kinds[0].hosts = {"n\x1b"};
  report.kinds[0].rows[3].settings[1].conflict = "\x9b";
  for (const char c : format_table(report)) EXPECT_TRUE(c == '\n' || (c >= ' ' && c <= '~')) << static_cast<int>(c);
}

}  // namespace

// The exact explanation of one rank.

namespace {

TEST(Explain, EveryDecisionAndSettingOfARankOfTheMachine) {
  EXPECT_EQ(format_explanation(test::sample_report(), 3),
            "rank 3, local rank 3 of 4, host n1\n"
            "(--bind numa, --gpus all)\n"
            "\n"
            "NIC: ib1\n"
            "  It is the nearest.\n"
            "  not ib0: SYS, further than PIX\n"
            "\n"
            "interface for sockets: chosen when the ranks of a job rendezvous\n"
            "\n"
            "settings:\n"
            "  NCCL_IB_HCA=\"=mlx5_0:1,mlx5_1:1\"\n"
            "    these are fit\n"
            "  OMP_NUM_THREADS=99\n"
            "    the environment has it\n"
            "    warning: this rank has only 4 hardware threads\n");
}

TEST(Explain, RanksOfAJobCountThroughIt) {
  const std::string text = format_explanation(test::sample_job(), 8);
  EXPECT_THAT(text, HasSubstr("rank 8, local rank 0 of 4, host n3\n"));
  EXPECT_THAT(text, HasSubstr("interface for sockets: ib0 (10.0.0.3)\n  it routes to the others\n"));
  EXPECT_THAT(text, HasSubstr("binding: not bound\n  has 0-15, should have 0-1,8-9\n"));
  EXPECT_THAT(text, HasSubstr("but this rank does not have it\n"));
  EXPECT_THAT(format_explanation(test::sample_job(), 5), Not(HasSubstr("does not have it")));
}

TEST(Explain, SaysWhatIsSetInstead) {
  Report report = test::sample_job();
  report.kinds[0].rows[1].settings[1].actual = "7";
  report.kinds[0].rows[1].actual->given = CpuSet{{0}};
  const std::string text = format_explanation(report, 1);
  EXPECT_THAT(text, HasSubstr("but this rank has '7'\n"));
  EXPECT_THAT(text, HasSubstr("started with 0\n"));
}

TEST(Explain, ARankThatIsNotThere) {
  const Error error = ddp::test::thrown_by([] { format_explanation(test::sample_report(), 4); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
}

}  // namespace

}  // namespace ddp::tools
