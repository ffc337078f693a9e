// The prose of ddprun's help and manual page.
#include "options/program_text.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

namespace ddp::launcher {
namespace {

constexpr std::size_t kHelpColumns = 100;

constexpr std::array kExamples{
    TextPair{"ddprun --nproc-per-node 8 train.py --epochs 3", "eight ranks of a Python script"},
    TextPair{"ddprun --nproc-per-node gpu -m package.train", "one rank of a Python module per GPU"},
    TextPair{"salloc --nodes 4 ddprun --nproc-per-node gpu train.py", "all GPUs of four nodes of a Slurm cluster"},
    TextPair{"ddprun -H n0:2,n1:2 train.py", "two ranks on each of two hosts, over ssh"},
    TextPair{"ddprun --nproc-per-node 4 ./train", "four ranks of any program"},
    TextPair{"ddprun --nproc-per-node 4 -t 3 --log-dir logs train.py", "output in files and, prefixed, on the console"},
    TextPair{"ddprun --nproc-per-node 8 --dry-run train.py", "what would start, and where"},
};

constexpr std::array kSignals{
    TextPair{"SIGTERM, SIGINT, SIGHUP, SIGQUIT",
             "end the job: forwarded to the process groups of all ranks; a second SIGINT kills them at once, "
             "a second SIGQUIT after reading their stacks (--signals-to-handle)"},
    TextPair{"SIGUSR1, SIGUSR2", "forwarded to the ranks' own processes; the job continues (--forward-signals)"},
};

constexpr std::array kExitStatuses{
    TextPair{"0", "all ranks returned 0"},
    TextPair{"N", "exit status of the first rank that failed; 128+S if signal S ended it"},
    TextPair{"128+S", "ddprun received signal S"},
    TextPair{"1", "ddprun itself failed or lost a node; with --torchrun-exit-codes: any failure of a running job"},
    TextPair{"2", "wrong command line"},
    TextPair{"124", "--timeout expired"},
    TextPair{"126", "the program cannot be executed"},
    TextPair{"127", "the program was not found"},
};

constexpr std::array kVariables{
    TextPair{"PET_<OPTION>",
             "Defaults for torchrun's options, such as PET_NNODES for --nnodes; each option above names its variable. "
             "Flags take a number: 0 is off. The command line wins."},
    TextPair{"DDP_BIND, DDP_GPUS", "Defaults for --bind and --gpus."},
    TextPair{"DDP_METRICS_PORT, DDP_METRICS_ADDRESS", "Defaults for --metrics-port and --metrics-address."},
    TextPair{
        "DDP_RDZV_SECRET",
        "Random phrase, the same on all nodes that meet at --rdzv-endpoint or --master-addr, by which they know each "
        "other. Without it, they use munge or the user's key file; under Slurm, a secret that ddprun creates."},
    TextPair{"DDP_MUNGE_SOCKET", "Socket of munged, where it is not libmunge's default."},
    TextPair{"PYTHON_EXEC", "Interpreter for scripts and modules (default: python3 or python from PATH)."},
    TextPair{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "Default for --shutdown-timeout."},
    TextPair{"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
             "Prefix of --tee lines; may contain ${role_name}, ${local_rank} and ${rank}."},
    TextPair{"TMPDIR", "Folder for temporary files (default /tmp)."},
};

std::string pairs(std::string_view heading, std::span<const TextPair> list, std::size_t columns) {
  std::string text = fmt::format("\n{}:\n", heading);
  for (const TextPair& pair : list)
    text += fmt::format("  {:<{}}  {}\n", pair.term, columns, wrapped(pair.meaning, columns + 4));
  return text;
}

}  // namespace

const ProgramText& program_text() {
  static const ProgramText text{
      .usage = "ddprun [OPTIONS] PROGRAM [ARGUMENTS...]",
      .summary = "start the ranks of a data-parallel job",
      .description =
          "Starts the ranks of a data-parallel job on one or more nodes, gives each torchrun's environment and a PMIx "
          "server, and supervises them: when one fails, ddprun ends the others and reports the root cause.",
      .program =
          "PROGRAM is a Python script or any executable. Everything after it belongs to the program, even what looks "
          "like an option; in these arguments, ${local_rank} and $local_rank become the rank's number on its node, and "
          "$$ becomes $. '--' also ends ddprun's options, which may be abbreviated while they are unambiguous, and "
          "written with underscores for dashes.",
      .examples = kExamples,
      .signals = kSignals,
      .exit_statuses = kExitStatuses,
      .variables = kVariables,
  };
  return text;
}

std::string wrapped(std::string_view text, std::size_t indent) {
  std::string result;
  std::size_t column = indent;
  while (!text.empty()) {
    const std::string_view word = text.substr(0, text.find(' '));
    if (!result.empty() && column + 1 + word.size() > kHelpColumns) {
      result += "\n" + std::string(indent, ' ');
      column = indent;
    } else if (!result.empty()) {
      result += ' ';
      ++column;
    }
    result += word;
    column += word.size();
    text.remove_prefix(std::min(text.size(), word.size() + 1));
  }
  return result;
}

std::string help_footer() {
  const ProgramText& text = program_text();
  return "\nEverything after PROGRAM belongs to the program; '--' also ends ddprun's options.\n"
         "Variables give defaults for torchrun's options: PET_NNODES for --nnodes. See also 'man ddprun'.\n" +
         pairs("Examples", text.examples, 64) + pairs("Signals", text.signals, 32) +
         pairs("Exit status", text.exit_statuses, 5);
}

}  // namespace ddp::launcher
