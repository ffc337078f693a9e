#include "env/options.hpp"

#include <array>
#include <charconv>

#include <fmt/format.h>

#include "command/option_word.hpp"
#include "command/usage_error.hpp"

namespace ddp::tools::env {

const char* const kEnvHelp =
    "Usage: ddp-info env [NAME...] [OPTIONS]\n"
    "       ddp-info env --diff A B\n"
    "\n"
    "Shows the environment variables that matter for training: their values on every rank of the job, where these "
    "came\n"
    "from, whether the NCCL that would be loaded reads them, and what is wrong. Secrets are hidden. With names: only "
    "these\n"
    "variables, and what is known of them.\n"
    "\n"
    "Options:\n"
    "      --all                 Also variables that have nothing to do with training.\n"
    "      --diff                Compare two of these: a file of --json, --dump-env, --ddp-dump or DDP_DUMP_ENV; "
    "pid:PID, a\n"
    "                            running process; job:JOBID or job:JOBID.STEP, the ranks of a running job.\n"
    "  -h, --help                Print this help and exit.\n"
    "      --json                Print one JSON document instead of the table.\n"
    "      --known               Print the table of all known variables (Markdown) and exit.\n"
    "      --nccl FILE           Judge by this library, not by the one that would be loaded.\n"
    "      --new                 Print the variables that the library reads but the table lacks, and exit.\n"
    "      --no-job              Ignore the launcher that started this process.\n"
    "      --own                 Print the rows of libddp's own variables in docs/environment.md and exit.\n"
    "      --pid PID             A running process instead of this one, as it was started.\n"
    "      --torch               Print rank 0's as PyTorch's DistributedDataParallel does: env:NAME=VALUE.\n"
    "\n"
    "Examples:\n"
    "  srun --mpi=pmix -N2 --ntasks-per-node=8 ddp-info env    what the ranks of a job have\n"
    "  ddp-info env NCCL_IB_TIMEOUT                            its value, meaning and range\n"
    "  ddp-info env --diff good.json bad.json                  what differs between two jobs\n"
    "  ddp-info env --diff good.json job:4711                  the same of one that runs\n"
    "  ddp-info env --nccl libnccl.so.2 --new                  which names a new NCCL has\n"
    "\n"
    "Options may be abbreviated while they are unambiguous.\n"
    "Exit status: 0 success, whatever was found; 1 failure (a file, the process, a rank, the output, a NAME that "
    "nobody\n"
    "knows or has); 2 wrong command line.\n";

namespace {

constexpr const char* kSeeHelp = "'ddp-info env --help' lists the options";

[[noreturn]] void reject(std::string cause, std::string hint) {
  throw UsageError{"reading the command line", std::move(cause), std::move(hint)};
}

void check_combination(const EnvOptions& options) {
  const std::array alone{options.json, options.torch, options.known, options.newer, options.own};
  int outputs = 0;
  for (const bool each : alone) outputs += each ? 1 : 0;
  if (outputs > 1) reject("--json, --torch, --known, --own and --new exclude each other", "give one of them");
  if (options.diff && options.names.size() != 2) {
    reject(fmt::format("--diff needs two files, not {}", options.names.size()),
           "give those of --json or DDP_DUMP_ENV, or pid:PID or job:JOBID");
  }
  const bool others = outputs > 0 || options.pid || options.all || !options.nccl.empty();
  if (options.diff && others) reject("--diff goes with no other option", "leave the others out");
  if (!options.diff && outputs > 0 && !options.names.empty()) {
    reject(fmt::format("'{}' is one word too many", options.names.front()),
           "names go without --json, --torch, --known, --own and --new");
  }
}

}  // namespace

int process_number(const std::string& text) {
  int number = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (status != std::errc{} || end != text.data() + text.size() || number <= 0) {
    reject(fmt::format("'{}' is not the number of a process", text), "ps(1) and squeue -s show them");
  }
  return number;
}

EnvOptions parse_env_options(std::span<const std::string> arguments) {
  static const std::vector<std::string> kNames{"--all", "--diff",   "--help", "--json", "--known",    "--nccl",
                                               "--new", "--no-job", "--own",  "--pid",  "--ranks-of", "--torch"};
  EnvOptions options;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (word.size() < 2 || word.front() != '-') {
      options.names.push_back(word);
      continue;
    }
    if (word == "-h") {
      options.help = true;
      continue;
    }
    const auto equals = word.find('=');
    const std::string name = full_option(word.substr(0, equals), kNames, kSeeHelp);
    if (name == "--pid" || name == "--nccl" || name == "--ranks-of") {
      if (equals == std::string::npos && i + 1 == arguments.size()) {
        reject(fmt::format("option '{}' needs a value", name), kSeeHelp);
      }
      const std::string value = equals == std::string::npos ? arguments[++i] : word.substr(equals + 1);
      if (name == "--pid") {
        options.pid = process_number(value);
      } else if (value.empty()) {
        reject(fmt::format("{} '' names nothing", name), "give a libnccl.so.2, or a job");
      } else if (name == "--ranks-of") {
        options.ranks_of = value;
      } else {
        options.nccl = value;
      }
      continue;
    }
    if (equals != std::string::npos) {
      reject(fmt::format("option '{}' takes no value", name), "leave out the '=' and what follows");
    }
    if (name == "--all") options.all = true;
    if (name == "--diff") options.diff = true;
    if (name == "--help") options.help = true;
    if (name == "--json") options.json = true;
    if (name == "--known") options.known = true;
    if (name == "--new") options.newer = true;
    if (name == "--no-job") options.no_job = true;
    if (name == "--own") options.own = true;
    if (name == "--torch") options.torch = true;
  }
  if (!options.help) check_combination(options);
  return options;
}

}  // namespace ddp::tools::env
