#include "status/options.hpp"

#include <charconv>
#include <optional>
#include <string_view>
#include <vector>

#include <fmt/format.h>

#include "command/option_word.hpp"
#include "command/usage_error.hpp"

namespace ddp::tools::status {

const char* const kStatusHelp =
    "Usage: ddp-info status [JOBID|PID] [OPTIONS]\n"
    "\n"
    "Says who hangs in a running job: for each rank where it is, who is missing, and who waits for whom. The first "
    "line "
    "is\n"
    "the verdict. The job is not touched, unless --stacks asks for it, and need not help: what ranks of libddp called "
    "last\n"
    "is read from their memory; of other programs, /proc tells what their processes do.\n"
    "\n"
    "PID is a process of this host: a rank, or something above ranks (ddprun, a batch script) or below one. JOBID is a "
    "job\n"
    "of Slurm (17) or one of its steps (17.0), all of whose nodes are asked by srun. A number that is both is a "
    "process. "
    "\n"
    "Without either: the job of this allocation, else the only job of this user on this host.\n"
    "\n"
    "Options:\n"
    "  -h, --help             Print this help and exit.\n"
    "      --after SECONDS    How long an operation must have waited to count. Default: 5.\n"
    "      --job JOBID        A job of Slurm, or one of its steps.\n"
    "      --json             Print one JSON document instead of text.\n"
    "      --pid PID          A process of this host.\n"
    "      --stacks           Also print where in the program ranks are, by py-spy or gdb, which stop them for a "
    "moment, "
    "or by\n"
    "                         /proc.\n"
    "      --timeout SECONDS  How long the answer may take. Default: 10 on one host, 30 on several, 60 with --stacks.\n"
    "\n"
    "Examples:\n"
    "  ddp-info status                 on the host where the job hangs\n"
    "  ddp-info status 17 --stacks     all nodes of job 17, with stacks\n"
    "  ddp-info status --pid $!        what was just started in the background\n"
    "\n"
    "Options may be abbreviated while they are unambiguous.\n"
    "Exit status: 0 nothing hangs; 1 a rank is missing or hangs; 2 it cannot tell, or could not look, or wrong "
    "command "
    "line.\n";

namespace {

constexpr const char* kSeeHelp = "'ddp-info status --help' lists the options";
constexpr double kLongest = 86'400;

[[noreturn]] void reject(std::string cause, std::string hint) {
  throw UsageError{"reading the command line", std::move(cause), std::move(hint)};
}

std::optional<int> number_of(std::string_view text) {
  int number = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (status != std::errc{} || end != text.data() + text.size() || number <= 0) return std::nullopt;
  return number;
}

/// "17", "17.0".
bool is_job(std::string_view text) {
  const auto dot = text.find('.');
  if (!number_of(text.substr(0, dot))) return false;
  if (dot == std::string_view::npos) return true;
  const std::string_view step = text.substr(dot + 1);
  return step == "0" || number_of(step).has_value();
}

double seconds_of(const std::string& option, const std::string& text, double least) {
  double seconds = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  if (status == std::errc{} && end == text.data() + text.size() && seconds >= least && seconds <= kLongest)
    return seconds;
  throw UsageError{"reading " + option,
                   fmt::format("'{}' is no number of seconds from {} to {}", text, least, kLongest),
                   "give seconds, as 2.5"};
}

void set_value(StatusOptions& options, const std::string& name, const std::string& value) {
  if (name == "--after") {
    options.after_s = seconds_of(name, value, 0);
  } else if (name == "--timeout") {
    options.limit = std::chrono::milliseconds(static_cast<int>(seconds_of(name, value, 1) * 1000));
  } else if (name == "--pid") {
    options.target.pid = number_of(value);
    if (!options.target.pid)
      throw UsageError{"reading --pid", fmt::format("'{}' is no process", value), "give its number"};
  } else {
    if (!is_job(value))
      throw UsageError{"reading --job", fmt::format("'{}' is no job of Slurm", value),
                       "give its number, as 17 or 17.0"};
    options.target.slurm_job = value;
  }
}

}  // namespace

StatusOptions parse_status_options(std::span<const std::string> arguments) {
  static const std::vector<std::string> kNames{"--help", "--after", "--facts",  "--job",
                                               "--json", "--pid",   "--stacks", "--timeout"};
  StatusOptions options;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    if (word == "-h") {
      options.help = true;
      continue;
    }
    if (!word.starts_with('-')) {
      if (!is_job(word)) reject(fmt::format("'{}' is neither a process nor a job of Slurm", word), kSeeHelp);
      if (!options.unresolved.empty()) reject(fmt::format("'{}' is one too many", word), "name one job");
      options.unresolved = word;
      continue;
    }
    const auto equals = word.find('=');
    const std::string name = full_option(word.substr(0, equals), kNames, kSeeHelp);
    const bool takes_value = name == "--after" || name == "--timeout" || name == "--pid" || name == "--job";
    if (!takes_value) {
      if (equals != std::string::npos)
        reject(fmt::format("option '{}' takes no value", name), "leave out the '=' and what follows");
      (name == "--help"     ? options.help
       : name == "--json"   ? options.json
       : name == "--stacks" ? options.stacks
                            : options.facts) = true;
      continue;
    }
    if (equals == std::string::npos && i + 1 == arguments.size())
      reject(fmt::format("option '{}' needs a value", name), "'ddp-info status --help' shows which");
    set_value(options, name, equals == std::string::npos ? arguments[++i] : word.substr(equals + 1));
  }
  const int named =
      (options.unresolved.empty() ? 0 : 1) + (options.target.pid ? 1 : 0) + (options.target.slurm_job.empty() ? 0 : 1);
  if (named > 1) reject("more than one job is named", "name one");
  return options;
}

}  // namespace ddp::tools::status
