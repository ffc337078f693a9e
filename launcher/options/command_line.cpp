#include "options/command_line.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include <fmt/format.h>

#include <ddp/version.hpp>

#include "cli/argument_split.hpp"
#include "cli/exit_error.hpp"
#include "cli/generated_pages.hpp"
#include "cli/option_values.hpp"
#include "options/option_groups.hpp"

namespace ddp::launcher {
namespace {

struct ForeignOption {
  std::string_view name;
  std::string_view hint;
};

constexpr std::string_view kTotal = "it is -n (--num-proc) here, of the whole job, or --nproc-per-node";
constexpr std::string_view kPerNode = "it is --nproc-per-node here";
constexpr std::string_view kNodes = "it is --nnodes here";
constexpr std::string_view kEnvironment =
    "ddprun passes on the whole environment: 'env NAME=VALUE ddprun ...' sets more";
constexpr std::string_view kHosts = "it is -H (--host) or --hostfile here";
constexpr std::string_view kIdentity = "write --ssh-command 'ssh -i FILE'";
constexpr std::string_view kPlacement = "ddprun places and binds ranks by --bind";

// Options of mpirun (Open MPI, MPICH), horovodrun, srun, accelerate and deepspeed.
constexpr std::array kForeign{
    ForeignOption{"-c", kTotal},
    ForeignOption{"--ntasks", kTotal},
    ForeignOption{"--num-processes", kTotal},
    ForeignOption{"-N", "mpirun's is --nproc-per-node here, srun's is --nnodes"},
    ForeignOption{"-npernode", kPerNode},
    ForeignOption{"--npernode", kPerNode},
    ForeignOption{"-ppn", kPerNode},
    ForeignOption{"--ppn", kPerNode},
    ForeignOption{"--ntasks-per-node", kPerNode},
    ForeignOption{"--num-gpus", kPerNode},
    ForeignOption{"--nodes", kNodes},
    ForeignOption{"--num-nodes", kNodes},
    ForeignOption{"--num-machines", kNodes},
    ForeignOption{"--machine-rank", "it is --node-rank here"},
    ForeignOption{"--main-process-ip", "it is --master-addr here"},
    ForeignOption{"--main-process-port", "it is --master-port here"},
    ForeignOption{"-host", kHosts},
    ForeignOption{"-hosts", kHosts},
    ForeignOption{"-hostfile", kHosts},
    ForeignOption{"-machinefile", kHosts},
    ForeignOption{"-f", kHosts},
    ForeignOption{"--include", kHosts},
    ForeignOption{"-x", kEnvironment},
    ForeignOption{"-genv", kEnvironment},
    ForeignOption{"-genvlist", kEnvironment},
    ForeignOption{"--export", kEnvironment},
    ForeignOption{"-p", "it is --ssh-port here"},
    ForeignOption{"-i", kIdentity},
    ForeignOption{"--ssh-identity-file", kIdentity},
    ForeignOption{"--bind-to", kPlacement},
    ForeignOption{"-bind-to", kPlacement},
    ForeignOption{"--map-by", kPlacement},
    ForeignOption{"-map-by", kPlacement},
    ForeignOption{"--cpu-bind", kPlacement},
    ForeignOption{"--oversubscribe", "leave it out: ddprun starts as many ranks as you say"},
    ForeignOption{"--allow-run-as-root", "leave it out: root may start ddprun"},
    ForeignOption{"--tag-output", "it is -t 3 (--tee) here"},
    ForeignOption{"--output-filename", "it is -t 3 --log-layout rank --log-dir FOLDER here"},
    ForeignOption{"--start-timeout", "it is --rdzv-conf join_timeout=SECONDS here"},
};

}  // namespace

std::string hint_for_foreign_option(std::string_view name) {
  const auto found = std::find_if(kForeign.begin(), kForeign.end(), [&](const auto& one) { return one.name == name; });
  return found != kForeign.end() ? std::string(found->hint) : std::string{};
}

namespace {

// Programs have their own --role, --log-dir or --module; these belong to launchers alone.
constexpr std::array<std::string_view, 9> kLauncherOptions{"--nproc-per-node", "--nnodes",       "--node-rank",
                                                           "--standalone",     "--max-restarts", "--rdzv-backend",
                                                           "--rdzv-endpoint",  "--rdzv-id",      "--hostfile"};
constexpr std::array<std::string_view, 10> kLaunchers{
    "torchrun", "torch.distributed", "accelerate", "deepspeed", "ddprun", "horovodrun",
    "mpirun",   "mpiexec",           "srun",       "launch"};

std::string plain_name(std::string_view word) {
  std::string name{word.substr(0, word.find('='))};
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

bool names_launcher(std::string_view word) {
  return std::any_of(kLaunchers.begin(), kLaunchers.end(),
                     [&](std::string_view name) { return word.find(name) != std::string_view::npos; });
}

}  // namespace

std::string remark_on_program_options(std::span<const std::string> command, std::span<const std::string> given) {
  if (command.empty() || names_launcher(command.front())) return {};
  for (const std::string& word : command.subspan(1)) {
    if (word == "--" || names_launcher(word)) return {};
    const std::string name = plain_name(word);
    if (std::find(kLauncherOptions.begin(), kLauncherOptions.end(), name) == kLauncherOptions.end()) continue;
    if (std::find(given.begin(), given.end(), name) != given.end()) return {};
    return fmt::format(
        "'{}' comes after the program, which gets it; ddprun's own options go before it: ddprun {} ... {}",
        cli::printable(word), name, cli::printable(command.front()));
  }
  return {};
}

// The prose of ddprun's help and manual page.

namespace {

constexpr std::array kExamples{
    cli::TextPair{"ddprun --nproc-per-node 8 train.py --epochs 3", "eight ranks of a Python script"},
    cli::TextPair{"ddprun --nproc-per-node gpu -m package.train", "one rank of a Python module per GPU"},
    cli::TextPair{"salloc --nodes 4 ddprun --nproc-per-node gpu train.py", "all GPUs of four nodes of a Slurm cluster"},
    cli::TextPair{"ddprun -H n0:2,n1:2 train.py", "two ranks on each of two hosts, over ssh"},
    cli::TextPair{"ddprun --nproc-per-node 4 ./train", "four ranks of any program"},
    cli::TextPair{"ddprun --nproc-per-node 4 -t 3 --log-dir logs train.py",
                  "output in files and, prefixed, on the console"},
    cli::TextPair{"ddprun --nproc-per-node 8 --dry-run train.py", "what would start, and where"},
    cli::TextPair{"sbatch --nodes 2 --wrap 'ddprun --join 1234'", "two more nodes for job 1234"},
};

constexpr std::array kSignals{
    cli::TextPair{"SIGTERM, SIGINT, SIGHUP, SIGQUIT",
                  "end the job: forwarded to the process groups of all ranks; a second SIGINT kills them at once, "
                  "a second SIGQUIT after reading their stacks (--signals-to-handle)"},
    cli::TextPair{"SIGUSR1, SIGUSR2", "forwarded to the ranks' own processes; the job continues (--forward-signals)"},
};

constexpr std::array kExitStatuses{
    cli::TextPair{"0", "all ranks returned 0"},
    cli::TextPair{"N", "exit status of the first rank that failed; 128+S if signal S ended it"},
    cli::TextPair{"128+S", "ddprun received signal S"},
    cli::TextPair{"1", "ddprun itself failed or lost a node; with --torchrun-exit-codes: any failure of a running job"},
    cli::TextPair{"2", "wrong command line"},
    cli::TextPair{"124", "--timeout expired"},
    cli::TextPair{"126", "the program cannot be executed"},
    cli::TextPair{"127", "the program was not found"},
};

constexpr std::array kVariables{
    cli::TextPair{
        "PET_<OPTION>",
        "Defaults for torchrun's options, such as PET_NNODES for --nnodes; each option above names its variable. "
        "Flags take a number: 0 is off. The command line wins."},
    cli::TextPair{"DDP_BIND, DDP_GPUS", "Defaults for --bind and --gpus."},
    cli::TextPair{"DDP_METRICS_PORT, DDP_METRICS_ADDRESS", "Defaults for --metrics-port and --metrics-address."},
    cli::TextPair{
        "DDP_RDZV_SECRET",
        "Random phrase by which nodes at --rdzv-endpoint or --master-addr authenticate each other; the same on all. "
        "Without it, they use munge or the user's key file; under Slurm, a secret that ddprun creates."},
    cli::TextPair{"DDP_MUNGE_SOCKET", "Socket of munged, where it is not libmunge's default."},
    cli::TextPair{"PYTHON_EXEC", "Interpreter for scripts and modules (default: python3 or python from PATH)."},
    cli::TextPair{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "Default for --shutdown-timeout."},
    cli::TextPair{"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
                  "Prefix of --tee lines; may contain ${role_name}, ${local_rank} and ${rank}."},
    cli::TextPair{"TMPDIR", "Folder for temporary files (default /tmp)."},
};

}  // namespace

cli::ProgramText program_text() {
  return {
      .name = "ddprun",
      .usage = {"[OPTIONS] PROGRAM [ARGUMENTS...]", "--join JOBID"},
      .summary = "start the ranks of a data-parallel job",
      .description =
          {"Starts the ranks of a data-parallel job on one or more nodes, gives each torchrun's environment and a PMIx "
           "server, and supervises them: when one fails, ddprun ends the others and reports the root cause."},
      .operands =
          "PROGRAM is a Python script or any executable. Everything after it belongs to the program, even what looks "
          "like an option; in these arguments, ${local_rank} and $local_rank become the rank's number on its node, and "
          "$$ becomes $. '--' also ends ddprun's options, which may be abbreviated while they are unambiguous, and "
          "written with underscores for dashes.",
      .remarks =
          "Everything after PROGRAM belongs to the program; '--' also ends ddprun's options.\n"
          "Variables give defaults for torchrun's options: PET_NNODES for --nnodes. See also 'man ddprun'.\n",
      .examples = {kExamples.begin(), kExamples.end()},
      .signals = {kSignals.begin(), kSignals.end()},
      .exit_statuses = {kExitStatuses.begin(), kExitStatuses.end()},
      .variables = {kVariables.begin(), kVariables.end()},
      .see_also = {"srun"},
      .example_columns = 64,
  };
}

// Turns ddprun's arguments and environment into checked options; the option groups do the work.

namespace {

/// Flags that print something instead of launching.
struct InformationFlags {
  bool help = false;
  bool version = false;
  bool page = false;
};

void fill(OptionTable& table, OptionDraft& draft, InformationFlags& flags) {
  add_job_options(table, draft);
  add_host_options(table, draft);
  add_program_options(table, draft);
  add_failure_options(table, draft);
  add_output_options(table, draft);
  add_placement_options(table, draft);
  add_rendezvous_options(table, draft);
  table.begin_group("Help");
  table.add_flag("-h,--help", "Show this help and exit.", flags.help).torchrun_without_variable();
  table.add_flag("--version", "Show the version and exit.", flags.version);
  cli::add_page_options(table, flags.page);
}

std::optional<Information> information(const OptionTable& table) {
  if (table.given("--help")) return Information{table.help()};
  if (table.given("--version")) return Information{fmt::format("ddprun (libddp) {}\n", DDP_VERSION_STRING)};
  if (auto page = cli::asked_page(table, true)) return Information{std::move(*page)};
  return std::nullopt;
}

/// All else comes from the job.
void check_joining(const OptionTable& table, const cli::SplitArguments& split) {
  const auto other = std::find_if(table.entries().begin(), table.entries().end(), [](const cli::OptionEntry& entry) {
    return entry.name != "--join" && !entry.results.empty();
  });
  const std::string more = other != table.entries().end() ? other->name
                           : !split.command.empty()       ? fmt::format("'{}'", cli::printable(split.command.front()))
                                                          : "";
  if (!more.empty())
    cli::reject_combination(fmt::format("--join takes program and options from the job, but {} was given too", more),
                            "leave it out");
}

}  // namespace

std::variant<LaunchOptions, Information> parse_command_line(std::span<const std::string> arguments,
                                                            const base::Environment& environment) {
  OptionTable table{program_text()};
  OptionDraft draft;
  InformationFlags flags;
  fill(table, draft, flags);

  cli::SplitArguments split =
      cli::split_arguments(arguments, table.shapes(),
                           {.hint_for_foreign_option = &hint_for_foreign_option, .one_dash = {"-np", "--num-proc"}});
  if (std::string remark = remark_on_program_options(split.command, split.options); !remark.empty())
    draft.notice(std::move(remark));
  table.parse(split.options);
  if (auto answer = information(table)) return std::move(*answer);
  table.read_values(environment);
  if (!draft.options.join.empty()) {
    check_joining(table, split);
    return std::move(draft.options);
  }
  settle_host_options(table, draft, environment);
  settle_job_options(table, draft);
  settle_total_ranks(table, draft, environment);
  settle_rendezvous_options(table, draft);
  settle_program_options(table, draft);
  settle_failure_options(table, draft, environment);
  settle_output_options(table, draft, environment);
  settle_placement_options(table, draft, environment);
  if (split.command.empty()) {
    throw cli::UsageError{cli::kReadingCommandLine, "no program to run",
                          fmt::format("write it after the options: ddprun {}", table.text().usage.front())};
  }
  draft.options.command = std::move(split.command);
  draft.options.program_hint = std::move(split.program_hint);
  return std::move(draft.options);
}

}  // namespace ddp::launcher
