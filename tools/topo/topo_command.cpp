#include "topo/topo_command.hpp"

#include <limits>
#include <map>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ddp/world.hpp>

#include "base/files.hpp"
#include "base/host_name.hpp"
#include "cli/option_values.hpp"
#include "command/job_surroundings.hpp"
#include "command/output.hpp"
#include "topo/job_gather.hpp"
#include "topo/json_report.hpp"
#include "topo/text_report.hpp"
#include "topology/placement/rank_resources.hpp"
#include "topology/placement/settings.hpp"
#include "topology/placement/visible_devices.hpp"

namespace ddp::tools {
namespace {

BindPolicy policy_of(const TopoOptions& options, const base::Environment& environment) {
  if (options.bind) return *options.bind;
  return topology::bind_policy_of(environment).value_or(BindPolicy::numa);
}

/// In a rank, DDP_BIND=none only means that the launcher has already bound it.
BindPolicy policy_in_job(const TopoOptions& options, const base::Environment& environment) {
  const BindPolicy policy = policy_of(options, environment);
  return !options.bind && policy == BindPolicy::none ? BindPolicy::numa : policy;
}

topology::GpuVisibility visibility_of(const TopoOptions& options, const base::Environment& environment) {
  return options.gpus ? *options.gpus : topology::gpu_visibility_of(environment);
}

void check_explained_rank(const TopoOptions& options, int num_ranks) {
  if (!options.explain || *options.explain < num_ranks) return;
  throw cli::UsageError{"reading --explain", fmt::format("there is no rank {} among {}", *options.explain, num_ranks),
                        fmt::format("give a rank from 0 to {}", num_ranks - 1)};
}

/// Parses a word with @p read, and turns its Error into a UsageError.
template <class Value>
Value parse_word(Value (*read)(std::string, std::string_view), const std::string& option, const std::string& text) {
  try {
    return read("reading " + option, text);
  } catch (const Error& error) {
    throw cli::usage_error(option, error);
  }
}

/// Sets @p target to a file name.
cli::OptionEntry::Reader file_name(std::optional<std::string>& target) {
  return [&target](const std::string& option, const std::string& text) {
    if (text.empty()) throw cli::UsageError{"reading " + option, "the file name is empty", "give a file name"};
    target = text;
  };
}

void check_combination(const TopoOptions& options, const cli::OptionTable& table) {
  if (options.export_file) {
    for (const cli::OptionEntry& other : table.entries()) {
      if (other.results.empty() || other.name == "--export" || other.name == "--no-job") continue;
      cli::reject_words(fmt::format("--export and {} exclude each other", other.name),
                        "--export writes this machine and does no more");
    }
  }
  if (options.json && options.explain) {
    cli::reject_words("--json and --explain exclude each other", "the JSON document has the decisions of every rank");
  }
  if (options.nproc) check_explained_rank(options, *options.nproc);
}

void print(const TopoOptions& options, const Report& report) {
  write_standard_output(options.json      ? format_json(report)
                        : options.explain ? format_explanation(report, *options.explain)
                                          : format_table(report));
}

void export_machine(const std::string& path) {
  const Topology topology = Topology::live();
  if (path == "-") {
    write_standard_output(topology.to_xml());
  } else {
    base::write_file(path, topology.to_xml());
  }
}

/// @param allowed processors that ranks of this machine may use; empty: all that the topology allows
void run_for_one_machine(const TopoOptions& options, const base::Environment& shell, const CpuSet& allowed) {
  if (options.export_file) return export_machine(*options.export_file);
  const Topology topology =
      options.xml ? Topology::from_xml_file(*options.xml == "-" ? "/dev/stdin" : *options.xml) : Topology::live();
  MachineQuestion question;
  if (!options.xml) {
    question.environment = shell;
    question.host = base::host_name();
    question.allowed = allowed & topology.allowed_cpus();
    question.limits = base::CgroupLimits::read();
    question.nccl_conf = base::read_nccl_conf(shell, base::home_folder(shell));
  }
  question.policy = policy_of(options, question.environment);
  question.gpus = visibility_of(options, question.environment);
  question.num_ranks = options.nproc.value_or(default_num_ranks(topology, question.environment, question.allowed));
  check_explained_rank(options, question.num_ranks);
  print(options, describe_machine(topology, question));
}

/// This rank's own facts. Failures are reported to rank 0, so that the others need not wait.
OwnFacts inquire(const World& world, const CpuSet& given) {
  OwnFacts own;
  RankReport& report = own.report;
  report.rank = world.rank();
  report.local_rank = world.local_rank();
  report.host = base::host_name();
  try {
    const Topology topology = Topology::live();
    const auto environment = base::Environment::process();
    report.given = given;
    report.binding = Binding::current();
    for (const Gpu& gpu : topology.gpus()) {
      if (gpu.visible) report.visible_gpus.push_back(gpu.index);
    }
    report.named_gpus = topology::gpus_named_by(topology, environment);
    report.environment = reported_variables(environment);
    report.nccl_conf = topology::placement_conf(base::read_nccl_conf(environment, base::home_folder(environment)));
    topology::RankResources limited;
    take_limits(limited, base::CgroupLimits::read());
    report.processor_thousandths = limited.processor_thousandths;
    report.processors_group = limited.processors_group;
    report.interface = {world.interface_name(), world.interface_address(), world.interface_reason()};
    if (report.local_rank == 0) {
      own.machine = topology.shape();
      own.xml = topology.to_xml();
    }
  } catch (const std::exception& error) {
    report.failure = error.what();
  }
  return own;
}

void check_failures(const GatheredJob& job) {
  std::string causes;
  std::vector<int> ranks;
  for (const GatheredNode& node : job.nodes) {
    for (const RankReport& report : node.ranks) {
      if (report.failure.empty()) continue;
      if (ranks.empty()) causes = fmt::format("rank {} on {}: {}", report.rank, report.host, report.failure);
      ranks.push_back(report.rank);
    }
  }
  if (ranks.empty()) return;
  throw Error{{.code = ErrorCode::unavailable,
               .attempted = "gathering what the ranks of the job have got",
               .cause = std::move(causes),
               .ranks = std::move(ranks)}};
}

std::vector<NodeReports> read_nodes(GatheredJob job) {
  std::map<std::string, Topology, std::less<>> machines;
  std::vector<NodeReports> nodes;
  for (GatheredNode& node : job.nodes) {
    auto machine = machines.find(node.machine);
    if (machine == machines.end()) {
      const std::string name = fmt::format("node {}", node.ranks.front().host);
      machine = machines.emplace(node.machine, Topology::from_xml(job.xml.at(node.machine), name)).first;
    }
    nodes.push_back({.topology = machine->second, .ranks = std::move(node.ranks)});
  }
  return nodes;
}

void run_in_job(const TopoOptions& options, const base::Environment& shell) {
  const CpuSet given = Binding::current().cpus;  // World::init may bind
  World world = World::init();
  if (options.export_file || options.xml || options.nproc) {
    // This rank's binding does not apply to other jobs on its machine.
    if (world.rank() == 0) run_for_one_machine(options, shell, {});
    return;
  }
  JobLayout layout{.rank = world.rank()};
  for (int node = 0; node < world.num_nodes(); ++node) layout.node_ranks.push_back(world.ranks_on_node(node));
  const Deadline deadline = Deadline::after(shell.seconds("DDP_INIT_TIMEOUT"));
  auto job = gather_job(world.key_value_store(), layout, inquire(world, given), deadline);
  if (!job) return;
  check_explained_rank(options, world.world_size());
  check_failures(*job);
  print(options, describe_job(read_nodes(std::move(*job)),
                              {.launcher = std::string(to_string(world.source())),
                               .reason = world.source_reason(),
                               .world_size = world.world_size()},
                              policy_in_job(options, shell), visibility_of(options, shell)));
}

}  // namespace

cli::OptionTable topo_table(TopoOptions& options) {
  cli::OptionTable table{
      {.name = "ddp-info topo",
       .usage = {"[OPTIONS]"},
       .description =
           {"Shows the machine and what follows from it: each rank's GPU, network adapter, NUMA node and cores, "
            "and its environment variables.",
            "Alone, it shows what ranks on this machine (or that of an XML file) would get. Started by a launcher "
            "with several ranks, it shows what every rank of the job has and whether that is right; rank 0 "
            "prints for all, and identical nodes are shown once."},
       .remarks = "In a job, --nproc, --xml and --export concern rank 0's machine only.\n",
       .examples = {{"ddp-info topo", "what ranks on this machine would get, one per GPU"},
                    {"ddp-info topo --nproc 4 --explain 2", "why local rank 2 of 4 gets its GPU, adapter and cores"},
                    {"srun --mpi=pmix -N2 --ntasks-per-node=8 ddp-info topo", "what the ranks of a job have"},
                    {"ddp-info topo --export node.xml", "record this machine ..."},
                    {"ddp-info topo --xml node.xml", "... and inspect it elsewhere"},
                    {"ddp-info topo --json | jq '.nodes[0].ranks[].gpu'",
                     "for programs; docs/reference/ddp-info.md describes the fields"}},
       .exit_statuses = {{"0", "success"},
                         {"1", "failure (a file, reading the hardware, a rank of the job)"},
                         {"2", "wrong command line"}}}};
  table.add_help();
  table.add_value(
      "--nproc", "N",
      fmt::format("Ranks on the machine, 1 to {}. Default: one per usable GPU; without GPUs, one per NUMA node.",
                  kMaxRanks),
      [&](const auto& option, const auto& text) { options.nproc = cli::parse_count(option, text, kMaxRanks); });
  table
      .add_value(
          "--bind", "POLICY",
          "Where a rank's cores are chosen: numa (an even share of the nearest NUMA node), core (one core), socket (a "
          "share of the nearest package), none (all allowed cores). Default: DDP_BIND, else numa.",
          [&](const auto& option, const auto& text) {
            options.bind = parse_word(&topology::read_bind_policy, option, text);
          })
      .choices({topology::kBindWords.begin(), topology::kBindWords.end()});
  table
      .add_value(
          "--gpus", "WHICH",
          "GPUs that each rank sees: all (ordered so that local rank i has GPU i), one (its own), none (nothing is "
          "set). Default: DDP_GPUS, else all.",
          [&](const auto& option, const auto& text) {
            options.gpus = parse_word(&topology::read_gpu_visibility, option, text);
          })
      .choices({topology::kGpuWords.begin(), topology::kGpuWords.end()});
  table
      .add_value(
          "--xml", "FILE",
          "Use another machine: a file of --export, of lstopo (hwloc 2; with hwloc 3, its option '--export-xml-flags "
          "v2'), or in NCCL's topology format. This shell's environment and job are ignored.",
          file_name(options.xml))
      .completes(cli::ValueKind::file);
  table
      .add_value("--export", "FILE", "Write this machine as XML to FILE ('-': standard output) and exit.",
                 file_name(options.export_file))
      .completes(cli::ValueKind::file);
  table.add_flag("--json", "Print one JSON document instead of the table.", options.json);
  table.add_value("--explain", "RANK", "Instead of the table, explain the placement of RANK.",
                  [&](const auto& option, const auto& text) {
                    options.explain = cli::parse_whole(option, text, 0, std::numeric_limits<int>::max());
                  });
  table.add_flag("--no-job", "Ignore the launcher that started this process.", options.no_job);
  return table;
}

TopoOptions parse_topo_options(std::span<const std::string> arguments) {
  TopoOptions options;
  cli::OptionTable table = topo_table(options);
  table.read_options(arguments);
  if (table.given("--help")) {
    options.help = table.help();
  } else {
    check_combination(options, table);
  }
  return options;
}

void run_topo(const TopoOptions& options) {
  if (!options.help.empty()) return write_standard_output(options.help);
  const auto shell = base::Environment::process();
  if (!options.no_job && is_launched(shell)) return run_in_job(options, shell);
  run_for_one_machine(options, shell, Binding::current().cpus);
}

}  // namespace ddp::tools
