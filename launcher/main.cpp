// ddprun: starts and supervises the ranks of a job.
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <exception>
#include <string>
#include <variant>
#include <vector>

#include <fmt/core.h>

#include <ddp/deadline.hpp>
#include <ddp/version.hpp>

#include "base/env_table.hpp"
#include "base/errors.hpp"
#include "base/log.hpp"
#include "launch/agent_settings.hpp"
#include "launch/launch.hpp"
#include "launch/launch_role.hpp"
#include "options/command_line.hpp"
#include "outcome/exit_error.hpp"
#include "slurm/slurmstepd.hpp"

namespace {

/// Otherwise what ddprun opens would get the number of a closed standard stream, and its text.
void open_standard_streams() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(fd, F_GETFD) < 0 && ::open("/dev/null", O_RDWR) < 0)
      throw ddp::base::system_error("opening /dev/null for a closed standard stream", errno);
  }
}

int run_with(const std::vector<std::string>& arguments) {
  auto environment = ddp::base::Environment::process();
  if (environment.has("SLURM_STEP_ID"))
    environment = ddp::launcher::without_foreign_step(environment, ddp::launcher::step_above());
  const auto command_line = ddp::launcher::parse_command_line(arguments, environment);
  if (const auto* information = std::get_if<ddp::launcher::Information>(&command_line)) {
    return ddp::base::write_text(STDOUT_FILENO, information->text, ddp::base::kPagePatience) ? 0 : 1;
  }
  return ddp::launcher::launch(std::get<ddp::launcher::LaunchOptions>(command_line), environment, arguments);
}

/// An agent of a host list: everything comes from its frontend.
int run_agent() {
  const auto settings = ddp::launcher::read_agent_settings(STDIN_FILENO, DDP_VERSION_STRING,
                                                           ddp::Deadline::after(std::chrono::seconds(30)));
  ddp::launcher::take_agent_settings(settings);
  return run_with(settings.arguments);
}

int run(const std::vector<std::string>& arguments) {
  open_standard_streams();
  if (arguments == std::vector<std::string>{ddp::launcher::kAgentWord}) return run_agent();
  ddp::launcher::leave_surrounding_step();
  return run_with(arguments);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + (argc > 0 ? 1 : 0), argv + argc});
  } catch (const ddp::launcher::ExitError& error) {
    ddp::base::write_stderr_line(fmt::format("ddprun: {}", error.what()));
    return error.exit_status();
  } catch (const std::exception& error) {
    ddp::base::write_stderr_line(fmt::format("ddprun: {}", error.what()));
    return 1;
  }
}
