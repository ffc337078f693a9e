// ddp-info: what libddp finds on a machine and in a job, and what follows from it.
#include <array>
#include <csignal>
#include <cstdio>
#include <exception>
#include <span>
#include <string>
#include <vector>

#include <fmt/core.h>

#include <ddp/version.hpp>

#include "base/closest_word.hpp"
#include "base/log.hpp"
#include "before/before_command.hpp"
#include "cli/exit_error.hpp"
#include "cli/generated_pages.hpp"
#include "command/output.hpp"
#include "doctor/doctor_command.hpp"
#include "env/env_command.hpp"
#include "flight/flight_command.hpp"
#include "resize/resize_command.hpp"
#include "status/status_command.hpp"
#include "topo/topo_command.hpp"
#include "trace/trace_command.hpp"

namespace ddp {
namespace {

cli::ProgramText program_text() {
  return {
      .name = "ddp-info",
      .usage = {"COMMAND [OPTIONS]"},
      .summary = "show what libddp finds on this machine and in this job",
      .description = {"Shows what libddp finds on this machine and in this job, and what follows from it."},
      .remarks =
          "Commands:\n"
          "  doctor    what is wrong on this machine or in this job, and how to fix it\n"
          "  env       the environment variables of all ranks, where they came from, and what is wrong with them\n"
          "  flight    what the ranks of a failed job called last, and which made it fail\n"
          "  resize    lets a running ddprun job continue on fewer or more nodes\n"
          "  status    which ranks of a running job hang, and which wait for them\n"
          "  topo      the machine, and the GPU, network adapter and cores each rank would get or has\n"
          "  trace     one picture of the ranks' traces, for Perfetto\n"
          "  version   the version of libddp\n"
          "\n"
          "'ddp-info COMMAND --help' describes the options of a command, which may be abbreviated while they are\n"
          "unambiguous.\n",
      .examples = {{"ddp-info topo", "what ranks on this machine would get"},
                   {"srun --mpi=pmix -N2 --ntasks-per-node=8 ddp-info topo", "what the ranks of a job have"},
                   {"srun --mpi=pmix -N4 --ntasks-per-node=8 ddp-info doctor", "what would make a job fail here"},
                   {"srun --mpi=pmix -N2 --ntasks-per-node=8 ddp-info env", "what they have in their environment"},
                   {"ddp-info flight DIR", "which rank made the job fail that wrote the files in DIR"},
                   {"ddp-info status 17", "which ranks hang in job 17"}},
      .exit_statuses = {{"0", "success"},
                        {"1", "failure"},
                        {"2", "wrong command line; doctor and status have others, see their --help"}},
      .variables = {{"DDP_BIND, DDP_GPUS", "Defaults of --bind and --gpus."},
                    {"DDP_DUMP_ENV", "Where a program's World::init writes what env shows: stderr or a file (JSON)."},
                    {"DDP_INIT_TIMEOUT", "Limit in seconds for the answers of all ranks."}},
      .see_also = {"ddprun", "ddp-selftest", "lstopo", "srun"},
      .example_columns = 56};
}

constexpr const char* kVersion = "ddp-info (libddp) " DDP_VERSION_STRING "\n";

void run_version(std::span<const std::string> arguments) {
  if (!arguments.empty() && arguments.front() != "-h" && arguments.front() != "--help") {
    throw cli::UsageError{cli::kReadingCommandLine,
                          fmt::format("'version' takes no arguments, but got '{}'", arguments.front()), "leave it out"};
  }
  tools::write_standard_output(arguments.empty() ? kVersion
                                                 : "Usage: ddp-info version\n\nPrints the version of libddp.\n");
}

/// What is asked of ddp-info itself.
std::string information(std::span<const std::string> arguments) {
  bool version = false;
  bool page = false;
  cli::OptionTable table{program_text()};
  table.add_help();
  table.add_flag("--version", "Print the version and exit.", version);
  cli::add_page_options(table, page);
  table.read(arguments);
  if (!page) return version && !table.given("--help") ? kVersion : table.help();
  tools::doctor::DoctorOptions doctor;
  tools::env::EnvOptions env;
  tools::flight::FlightOptions flight;
  tools::resize::ResizeOptions resize;
  tools::status::StatusOptions status;
  tools::TopoOptions topo;
  tools::trace::TraceOptions trace;
  const auto tables = std::array{doctor_table(doctor), env_table(env),   flight_table(flight), resize_table(resize),
                                 status_table(status), topo_table(topo), trace_table(trace)};
  const std::array commands{cli::Command{"doctor", &tables[0]},
                            cli::Command{"env", &tables[1], cli::ValueKind::file},
                            cli::Command{"flight", &tables[2], cli::ValueKind::folder},
                            cli::Command{"resize", &tables[3]},
                            cli::Command{"status", &tables[4]},
                            cli::Command{"topo", &tables[5]},
                            cli::Command{"trace", &tables[6], cli::ValueKind::folder},
                            cli::Command{"version", nullptr}};
  return cli::asked_page(table, false, commands).value_or("");
}

void run(std::span<const std::string> arguments) {
  const std::string& command = arguments.front();
  const auto rest = arguments.subspan(1);
  if (command.starts_with("-")) return tools::write_standard_output(information(arguments));
  if (command == "version") return run_version(rest);
  if (command == "topo") return tools::run_topo(tools::parse_topo_options(rest));
  if (command == "env") return tools::env::run_env(tools::env::parse_env_options(rest));
  if (command == "flight") return tools::flight::run_flight(tools::flight::parse_flight_options(rest));
  if (command == "resize") return tools::resize::run_resize(tools::resize::parse_resize_options(rest));
  if (command == "trace") return tools::trace::run_trace(tools::trace::parse_trace_options(rest));
  const std::vector<std::string> known{"doctor", "env", "flight", "resize", "status", "topo", "trace", "version"};
  const std::string closest = base::closest_word(command, known, 3);
  throw cli::UsageError{
      cli::kReadingCommandLine, fmt::format("unknown command '{}'", command),
      closest.empty() ? "'ddp-info --help' lists the commands" : fmt::format("did you mean '{}'?", closest)};
}

/// Its own exit status says what it has found.
int run_doctor(std::span<const std::string> arguments) {
  try {
    return tools::doctor::run_doctor(tools::doctor::parse_doctor_options(arguments), arguments);
  } catch (const std::exception& error) {
    base::write_stderr_line(fmt::format("ddp-info: {}", error.what()));
    return tools::doctor::kCouldNotExamine;
  }
}

/// The same.
int run_status(std::span<const std::string> arguments) {
  try {
    return tools::status::run_status(tools::status::parse_status_options(arguments));
  } catch (const std::exception& error) {
    base::write_stderr_line(fmt::format("ddp-info: {}", error.what()));
    return tools::status::kCannotTell;
  }
}

}  // namespace
}  // namespace ddp

int main(int argc, char** argv) {
  using namespace ddp;
  std::signal(SIGPIPE, SIG_IGN);  // reports a closed pipe like a full disk
  try {
    const std::vector<std::string> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
    if (arguments.empty()) {
      std::string help = information({});
      help.pop_back();
      base::write_stderr_line(help);
      return 2;
    }
    if (arguments.front() == "before") return tools::before::run_before(std::span{arguments}.subspan(1));
    if (arguments.front() == "doctor") return run_doctor(std::span{arguments}.subspan(1));
    if (arguments.front() == "status") return run_status(std::span{arguments}.subspan(1));
    run(arguments);
    return 0;
  } catch (const cli::ExitError& error) {
    base::write_stderr_line(fmt::format("ddp-info: {}", error.what()));
    return error.exit_status();
  } catch (const std::exception& error) {
    base::write_stderr_line(fmt::format("ddp-info: {}", error.what()));
    return 1;
  }
}
