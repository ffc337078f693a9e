// torchrun's grammar for numbers of nodes and of ranks, with limits.
#include "options/job_options.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <fstream>
#include <iterator>
#include <limits>

#include <fmt/format.h>

#include "base/closest_word.hpp"
#include "base/errors.hpp"
#include "cli/option_values.hpp"
#include "options/host_list.hpp"
#include "options/option_groups.hpp"

namespace ddp::launcher {

NodeRange parse_node_range(const std::string& option, const std::string& text) {
  const auto colon = text.find(':');
  if (colon == std::string::npos) {
    const int nodes = cli::parse_count(option, text, kMaxNodes);
    return {.min = nodes, .max = nodes};
  }
  if (text.find(':', colon + 1) != std::string::npos)
    cli::reject_value(option, text, "has more than one colon", "give N or MIN:MAX");
  const NodeRange range{.min = cli::parse_count(option, text.substr(0, colon), kMaxNodes),
                        .max = cli::parse_count(option, text.substr(colon + 1), kMaxNodes)};
  if (range.min > range.max)
    cli::reject_value(option, text, "has a minimum above its maximum",
                      fmt::format("did you mean {}:{}?", range.max, range.min));
  return range;
}

RanksPerNode parse_ranks_per_node(const std::string& option, const std::string& text) {
  using Kind = RanksPerNode::Kind;
  if (text == "cpu") return {.kind = Kind::cpus, .number = 1};
  if (text == "gpu" || text == "xpu") return {.kind = Kind::gpus, .number = 1};
  if (text == "auto") return {.kind = Kind::automatic, .number = 1};
  const bool word = !text.empty() && std::isalpha(static_cast<unsigned char>(text.front())) != 0;
  if (!word) return {.kind = Kind::number, .number = cli::parse_count(option, text, kMaxRanksPerNode)};
  const std::array<std::string, 3> words{"cpu", "gpu", "auto"};
  std::string lower = text;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return std::tolower(c); });
  const std::string closest = base::closest_word(lower, words, 2);
  cli::reject_value(option, text,
                    fmt::format("is neither a number from 1 to {} nor cpu, gpu or auto", kMaxRanksPerNode),
                    fmt::format("{}; the number of torch's devices of another kind is "
                                "$(python -c 'import torch; print(torch.accelerator.device_count())')",
                                closest.empty() ? "give one of these" : fmt::format("did you mean '{}'?", closest)));
}

// Options on the size of the job.

void add_job_options(OptionTable& table, OptionDraft& draft) {
  LaunchOptions& options = draft.options;
  table.begin_group("Job");
  table
      .add_value("--nnodes", "N|MIN:MAX",
                 "Number of nodes, or minimum and maximum (default: all of the Slurm allocation or step, else 1).",
                 [&](const auto& source, const auto& text) {
                   options.nodes = parse_node_range(source, text);
                   options.nodes_given = true;
                 })
      .torchrun();
  table.add_value(
      "--spares", "N",
      "Hold back N nodes, the last of the allocation or host list: one takes the place of the next lost node, "
      "without a restart (default 0).",
      [&](const auto& source, const auto& text) { options.spares = cli::parse_whole(source, text, 0, kMaxNodes); });
  table.add_flag("--replace",
                 "In a Slurm allocation: request another node for each lost one, by a salloc of the same partition, "
                 "account, QOS and remaining time; SALLOC_* variables override these. The job continues meanwhile.",
                 options.replace);
  table.add_value(
      "--grow-to", "N",
      "With --nnodes MIN:MAX in a Slurm allocation: request nodes in this way until N nodes run ranks.",
      [&](const auto& source, const auto& text) { options.grow_to = cli::parse_count(source, text, kMaxNodes); });
  table
      .add_value("--join", "JOBID",
                 "Bring the nodes of this Slurm allocation into the running job of another one of yours, which has "
                 "--nnodes MIN:MAX or --spares; program and options are that job's.",
                 [&](const auto& source, const auto& text) {
                   cli::parse_whole(source, text, 1, std::numeric_limits<int>::max());
                   options.join = text;
                 })
      .choices_of("squeue --me --noheader --format=%A");
  table
      .add_value("--nproc-per-node", "N|cpu|gpu|auto",
                 fmt::format("Ranks per node, 1 to {} (default 1): a number, one per usable processor (cpu), one per "
                             "GPU (gpu), or one per GPU if there are any, else per processor (auto).",
                             kMaxRanksPerNode),
                 [&](const auto& source, const auto& text) { options.nproc = parse_ranks_per_node(source, text); })
      .torchrun()
      .choices({"cpu", "gpu", "auto"});
  add_total_ranks(table, draft);
  table.add_flag("--standalone", "Run on this node alone, even in a Slurm allocation of several.", options.standalone)
      .torchrun();
  table.add_value("--timeout", "SECONDS",
                  "End the job after this time, with exit status 124; the report shows where each rank was.",
                  [&](const auto& source, const auto& text) {
                    options.timeout = cli::parse_positive_seconds(source, text, cli::kOneYear);
                  });
}

void settle_job_options(const OptionTable& table, OptionDraft& draft) {
  LaunchOptions& options = draft.options;
  if (options.grow_to > 0 && (options.grow_to < options.nodes.min || options.grow_to > options.nodes.max))
    cli::reject_combination(options.nodes_given
                                ? fmt::format("--grow-to {} is not within the --nnodes that was given", options.grow_to)
                                : "--grow-to was given without --nnodes",
                            fmt::format("give --nnodes MIN:{}", options.grow_to));
  if (!options.standalone) return;
  if (options.spares > 0)
    cli::reject_combination("--standalone is a job on one node, but --spares requests others", "drop one of them");
  if (options.nodes.min > 1)
    cli::reject_combination(
        fmt::format("--standalone is a job on one node, but --nnodes requests {}", options.nodes.min),
        "drop one of them");
  options.nodes = {};
  for (const char* name : {"--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf", "--node-rank",
                           "--master-addr", "--master-port"}) {
    if (table.given(name)) draft.notice(fmt::format("{} is ignored: --standalone needs no rendezvous", name));
  }
  options.rendezvous = {};
}

// Options on a job by host list, whose agents ddprun starts over ssh.

namespace {

// kMaxNodes lines of 64 characters.
constexpr std::streamsize kMostFileBytes = 4 << 20;

std::string read_host_file(const std::string& path) {
  const auto refuse = [&](const std::string& why) {
    cli::reject_value("--hostfile", path, why, "give a file with one host a line");
  };
  std::ifstream file(path, std::ios::binary);
  if (!file) refuse(fmt::format("cannot be read: {}", base::errno_text(errno)));
  std::string text(static_cast<std::size_t>(kMostFileBytes) + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) refuse("cannot be read: is it a folder?");
  text.resize(static_cast<std::size_t>(file.gcount()));
  if (text.size() > static_cast<std::size_t>(kMostFileBytes)) refuse("is larger than 4 MiB");
  return text;
}

/// An agent of a host list takes its part, and does not read the list: the file may be on another host.
void take_part(const std::string& part, LaunchOptions& options) {
  const std::vector<std::string_view> fields = cli::parts_of(part, ':');
  if (fields.size() < 2) cli::reject_value(kAgentHostVariable, part, "is not NODE:RANKS", "ddprun sets it; unset it");
  const int ranks = cli::parse_whole(kAgentHostVariable, fields[1], 0, kMaxRanksPerNode);
  if (ranks > 0) options.nproc = {.kind = RanksPerNode::Kind::number, .number = ranks};
  if (std::find(fields.begin(), fields.end(), "here") == fields.end()) options.local_addr.clear();  // the frontend's
}

void check_numbers(const OptionTable& table, const LaunchOptions& options) {
  const bool number = options.nproc.kind == RanksPerNode::Kind::number;
  for (const HostEntry& host : options.hosts) {
    if (host.ranks > 0 && table.given("--nproc-per-node") && (!number || options.nproc.number != host.ranks))
      cli::reject_combination(fmt::format("--nproc-per-node contradicts the host list, which gives {} rank{} to '{}'",
                                          host.ranks, host.ranks == 1 ? "" : "s", host.name),
                              "leave out --nproc-per-node, or the numbers in the list");
    if (host.ranks == 0 && host.max_ranks > 0 && number && options.nproc.number > host.max_ranks)
      cli::reject_combination(fmt::format("--nproc-per-node {} is more than max_slots={} of '{}'", options.nproc.number,
                                          host.max_ranks, host.name),
                              "start fewer ranks, or give a larger max_slots");
  }
}

}  // namespace

void add_host_options(OptionTable& table, OptionDraft& draft) {
  const auto take_list = [&draft](const std::string& source, const std::string& text) {
    draft.options.hosts = merge_hosts(source, parse_host_list(source, text));
  };
  const auto take_file = [&draft](const std::string&, const std::string& text) { draft.host_file = text; };
  table.begin_group("Hosts");
  table.add_value("-H,--host", "HOST[:RANKS],...",
                  "Start the ranks on these hosts, over ssh without a password: n0:2,n[1-3]:4. Without numbers, "
                  "--nproc-per-node applies. --nnodes takes the first hosts of the list.",
                  take_list);
  table
      .add_value(
          "--hostfile", "FILE",
          "The same from a file: one HOST, HOST:RANKS or 'HOST slots=RANKS' per line, as for mpirun and horovodrun.",
          take_file)
      .completes(ValueKind::file);
  table.add_value(
      "--ssh-command", "COMMAND",
      "Command to run instead of ssh, with options quoted as for a shell: 'ssh -i key' (default ssh). It must accept "
      "ssh's options.",
      [&](const auto& source, const auto& text) { draft.options.ssh_command = split_shell_words(source, text); });
  table.add_value(
      "--agent-command", "COMMAND",
      "Another command instead of ssh: rsh, 'kubectl exec -i {host} --', 'blaunch {host} {command}'. {host} is a host, "
      "{command} ddprun's command as one word for a shell; both follow at the end where they are left out. It must "
      "hand on standard input.",
      [&](const auto& source, const auto& text) { draft.options.agent_command = parse_agent_command(source, text); });
  table.add_value("--ssh-port", "PORT", "Port of the hosts' sshd (default: from ssh's configuration).",
                  [&](const auto& source, const auto& text) {
                    draft.options.ssh_port = cli::parse_whole(source, text, 1, 65'535);
                  });
  table.begin_group("");  // mpirun's and horovodrun's other names
  table.add_value("--hosts", "HOST[:RANKS],...", "As -H.", take_list);
  table.add_value("--host-file", "FILE", "As --hostfile.", take_file);
  table.add_value("--machinefile", "FILE", "As --hostfile.", take_file);
}

void settle_host_options(const OptionTable& table, OptionDraft& draft, const base::Environment& environment) {
  LaunchOptions& options = draft.options;
  if (const auto part = environment.raw(kAgentHostVariable)) {
    options.hosts.clear();
    return take_part(*part, options);
  }
  if (!draft.host_file.empty()) {
    if (!options.hosts.empty()) cli::reject_combination("-H and --hostfile both name the hosts", "give one of them");
    const std::string source = fmt::format("--hostfile '{}'", cli::printable(draft.host_file));
    options.hosts = merge_hosts(source, parse_host_file(source, read_host_file(draft.host_file)));
  }
  if (options.hosts.empty()) {
    for (const char* name : {"--ssh-command", "--ssh-port", "--agent-command"}) {
      if (table.given(name))
        cli::reject_combination(fmt::format("{} is for jobs by host list", name), "add -H or --hostfile");
    }
    return;
  }
  for (const char* name : {"--ssh-command", "--ssh-port"}) {
    if (table.given(name) && table.given("--agent-command"))
      cli::reject_combination(fmt::format("{} is for ssh, which --agent-command replaces", name),
                              "write its options into --agent-command");
  }
  for (const char* name : {"--standalone", "--rdzv-endpoint", "--node-rank", "--master-addr", "--master-port"}) {
    if (table.given(name))
      cli::reject_combination(
          fmt::format("{} and a host list contradict each other: ddprun starts the nodes itself", name),
          "drop one of them");
  }
  if (options.standard_input == StandardInput::all && options.hosts.size() > 1)
    cli::reject_combination("ranks of a host list cannot all read one standard input",
                            "drop --stdin all, or read a file");
  check_numbers(table, options);
}

}  // namespace ddp::launcher
