// ddp-info: what libddp finds on a machine and in a job, and what follows from it.
#include <csignal>
#include <cstdio>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include <fmt/core.h>

#include <ddp/version.hpp>

#include "base/closest_word.hpp"
#include "base/log.hpp"
#include "before/before_command.hpp"
#include "command/option_word.hpp"
#include "command/output.hpp"
#include "command/usage_error.hpp"
#include "doctor/doctor_command.hpp"
#include "env/env_command.hpp"
#include "flight/flight_command.hpp"
#include "status/status_command.hpp"
#include "topo/options.hpp"
#include "topo/topo_command.hpp"
#include "trace/trace_command.hpp"

namespace {

constexpr const char* kHelp =
    "Usage: ddp-info COMMAND [OPTIONS]\n"
    "\n"
    "Shows what libddp finds on this machine and in this job, and what follows from it.\n"
    "\n"
    "Commands:\n"
    "  doctor    what is wrong on this machine or in this job, and how to fix it\n"
    "  env       the environment variables of all ranks, where they came from, and what is wrong with them\n"
    "  flight    what the ranks of a failed job called last, and who made it fail\n"
    "  status    who hangs in a running job, who is missing and who waits for whom\n"
    "  topo      the machine, and the GPU, network adapter and cores each rank would get or has\n"
    "  trace     one picture of the ranks' traces, for Perfetto\n"
    "  version   the version of libddp\n"
    "\n"
    "'ddp-info COMMAND --help' describes the options of a command.\n"
    "\n"
    "Examples:\n"
    "  ddp-info topo                                           what ranks on this machine would get\n"
    "  srun --mpi=pmix -N2 --ntasks-per-node=8 ddp-info topo   what the ranks of a job have\n"
    "  srun --mpi=pmix -N4 --ntasks-per-node=8 ddp-info doctor what would make a job fail here\n"
    "  srun --mpi=pmix -N2 --ntasks-per-node=8 ddp-info env    what they have in their environment\n"
    "  ddp-info flight DIR                                     who made the job fail that wrote the files in DIR\n"
    "  ddp-info status 17                                      who hangs in job 17\n"
    "\n"
    "Exit status: 0 success; 1 failure; 2 wrong command line. Those of doctor and status: their --help.\n";

constexpr const char* kVersion = "ddp-info (libddp) " DDP_VERSION_STRING "\n";

void run_version(std::span<const std::string> arguments) {
  if (!arguments.empty() && arguments.front() != "-h" && arguments.front() != "--help") {
    throw ddp::tools::UsageError{"reading the command line",
                                 fmt::format("'version' takes no arguments, but got '{}'", arguments.front()),
                                 "leave it out"};
  }
  ddp::tools::write_standard_output(arguments.empty() ? kVersion
                                                      : "Usage: ddp-info version\n\nPrints the version of libddp.\n");
}

void run(std::span<const std::string> arguments) {
  using ddp::tools::UsageError;
  const std::string& command = arguments.front();
  if (command == "-h") return ddp::tools::write_standard_output(kHelp);
  if (command.starts_with("--")) {
    const std::vector<std::string> options{"--help", "--version"};
    const bool help = ddp::tools::full_option(command, options, "'ddp-info --help' lists the options") == "--help";
    return ddp::tools::write_standard_output(help ? kHelp : kVersion);
  }
  if (command == "version") return run_version(arguments.subspan(1));
  if (command == "topo") {
    const auto parsed = ddp::tools::parse_topo_options(arguments.subspan(1));
    if (const auto* help = std::get_if<ddp::tools::HelpText>(&parsed)) {
      return ddp::tools::write_standard_output(help->text);
    }
    return ddp::tools::run_topo(std::get<ddp::tools::TopoOptions>(parsed));
  }
  if (command == "env") return ddp::tools::env::run_env(ddp::tools::env::parse_env_options(arguments.subspan(1)));
  if (command == "flight")
    return ddp::tools::flight::run_flight(ddp::tools::flight::parse_flight_options(arguments.subspan(1)));
  if (command == "trace")
    return ddp::tools::trace::run_trace(ddp::tools::trace::parse_trace_options(arguments.subspan(1)));
  const std::vector<std::string> known{"doctor", "env", "flight", "status", "topo", "trace", "version"};
  const std::string closest = ddp::base::closest_word(command, known, 3);
  throw UsageError{
      "reading the command line", fmt::format("unknown command '{}'", command),
      closest.empty() ? "'ddp-info --help' lists the commands" : fmt::format("did you mean '{}'?", closest)};
}

/// Its own exit status says what it has found.
int run_doctor(std::span<const std::string> arguments) {
  try {
    return ddp::tools::doctor::run_doctor(ddp::tools::doctor::parse_doctor_options(arguments), arguments);
  } catch (const std::exception& error) {
    ddp::base::write_stderr_line(fmt::format("ddp-info: {}", error.what()));
    return ddp::tools::doctor::kCouldNotExamine;
  }
}

/// The same.
int run_status(std::span<const std::string> arguments) {
  try {
    return ddp::tools::status::run_status(ddp::tools::status::parse_status_options(arguments));
  } catch (const std::exception& error) {
    ddp::base::write_stderr_line(fmt::format("ddp-info: {}", error.what()));
    return ddp::tools::status::kCannotTell;
  }
}

}  // namespace

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // reports a closed pipe like a full disk
  try {
    const std::vector<std::string> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
    if (arguments.empty()) {
      ddp::base::write_stderr_line(std::string_view{kHelp}.substr(0, std::string_view{kHelp}.size() - 1));
      return 2;
    }
    if (arguments.front() == "before") return ddp::tools::before::run_before(std::span{arguments}.subspan(1));
    if (arguments.front() == "doctor") return run_doctor(std::span{arguments}.subspan(1));
    if (arguments.front() == "status") return run_status(std::span{arguments}.subspan(1));
    run(arguments);
    return 0;
  } catch (const ddp::tools::UsageError& error) {
    ddp::base::write_stderr_line(fmt::format("ddp-info: {}", error.what()));
    return 2;
  } catch (const std::exception& error) {
    ddp::base::write_stderr_line(fmt::format("ddp-info: {}", error.what()));
    return 1;
  }
}
