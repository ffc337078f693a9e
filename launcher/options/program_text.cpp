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
    TextPair{"ddprun --nproc-per-node 4 ./train", "four ranks of any program"},
    TextPair{"ddprun --nproc-per-node 4 -t 3 --log-dir logs train.py", "output in files and, with prefixes, here"},
    TextPair{"ddprun --nproc-per-node 8 --dry-run train.py", "what would be started, and where"},
};

constexpr std::array kSignals{
    TextPair{"SIGTERM, SIGINT, SIGHUP, SIGQUIT",
             "go to the process groups of all ranks and end the job; a second SIGINT kills it at once "
             "(--signals-to-handle)"},
    TextPair{"SIGUSR1, SIGUSR2", "go to the ranks' own processes, and the job goes on (--forward-signals)"},
};

constexpr std::array kExitStatuses{
    TextPair{"0", "all ranks returned 0"},
    TextPair{"N", "status of the first rank that failed, 128+S when signal S ended it"},
    TextPair{"128+S", "ddprun got signal S"},
    TextPair{"1", "ddprun itself failed or lost a node; with --torchrun-exit-codes: any failure of a running job"},
    TextPair{"2", "wrong command line"},
    TextPair{"124", "--timeout has passed"},
    TextPair{"126", "the program cannot be executed"},
    TextPair{"127", "the program was not found"},
};

constexpr std::array kVariables{
    TextPair{"PET_<OPTION>",
             "Defaults for torchrun's options, as PET_NNODES for --nnodes. Those of flags are numbers: 0 is no. The "
             "command line wins. Each option above names its own."},
    TextPair{"DDP_BIND, DDP_GPUS", "Defaults for --bind and --gpus."},
    TextPair{
        "DDP_RDZV_SECRET",
        "A secret that nodes which meet at --rdzv-endpoint or --master-addr must have in common. Under Slurm, ddprun "
        "makes one itself."},
    TextPair{"PYTHON_EXEC", "The interpreter of scripts and modules. Else python3 or python of PATH."},
    TextPair{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "Default for --shutdown-timeout."},
    TextPair{"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
             "What --tee puts in front of lines, with ${role_name}, ${local_rank} and ${rank}."},
    TextPair{"TMPDIR", "Where temporary files lie (default /tmp)."},
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
          "Starts the ranks of a data-parallel job on one node or on all nodes of a job, gives each the environment "
          "of torchrun and a PMIx server, and watches over them: when one fails, the others are ended and the root "
          "cause is reported.",
      .program =
          "PROGRAM is a Python script, or any other program: what is executable and no Python script is "
          "executed directly. Everything from PROGRAM on belongs to the program, whatever it looks like; '--' "
          "also ends the options of ddprun. ${local_rank} and $local_rank in an argument become the rank's number on "
          "its node, and $$ becomes $. "
          "Options may be shortened as long as they are unambiguous, and underscores may stand for dashes.",
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
  return "\nEverything from PROGRAM on belongs to the program; '--' also ends the options of ddprun.\n"
         "Options of torchrun have defaults in variables: PET_NNODES for --nnodes. 'man ddprun' tells more.\n" +
         pairs("Examples", text.examples, 64) + pairs("Signals", text.signals, 32) +
         pairs("Exit status", text.exit_statuses, 5);
}

}  // namespace ddp::launcher
