#include "step_program/witness_command.hpp"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <exception>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include <fmt/format.h>

#include <ddp/version.hpp>

#include "base/stderr_line.hpp"
#include "base/system_error.hpp"
#include "base/unique_fd.hpp"
#include "ddp_step_client.hpp"
#include "step_program/end_reporter.hpp"
#include "step_program/input_line.hpp"
#include "store_server/witness.hpp"

namespace ddp::srun_plugin {
namespace {

// The plugin waits a little longer.
constexpr std::chrono::seconds kReachLimit{5};
// The version of this program, which the plugin compares with its own.
constexpr const char* kKnown = "ddp-step 1 known " DDP_VERSION_STRING;

void write_line(const std::string& line) { base::write_line(STDOUT_FILENO, line, base::kLinePatience); }

/// A program of the step must not wait for ends of output that only this process holds, nor must its folder be in use.
void let_go_of_the_task() {
  const base::UniqueFd nothing{::open("/dev/null", O_RDWR | O_CLOEXEC)};
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (nothing) ::dup2(nothing.get(), fd);
  }
  [[maybe_unused]] const int ignored = ::chdir("/");
}

int stay(const std::string& line) {
  try {
    std::istringstream fields(line);
    std::string address, key;
    std::uint16_t port = 0;
    ReportingNode node;
    bool has_channel = false;
    fields >> address >> port >> key >> node.name >> node.step.node_list >> node.step.world_size >> node.first_rank >>
        has_channel;
    const Deadline deadline = Deadline::after(kReachLimit);
    store_server::Witness witness(address, port, store_server::StoreKey::parse(key), deadline);
    store_server::check_served(address, port, deadline);
    std::optional<EndReporter> reporter;
    reporter.emplace(address, port, std::move(node));
    write_line(kKnown);
    let_go_of_the_task();
    if (has_channel) {
      reporter->run(DdpStepClient::kInheritedFd);
    } else {
      reporter.reset();
      witness.wait();
    }
    return 0;
  } catch (const std::exception& error) {
    write_line(fmt::format("error {}", error.what()));
    return 1;
  }
}

}  // namespace

int witness_connections() {
  // The user's own signals to the step's processes are not for it.
  sigset_t termination;
  ::sigemptyset(&termination);
  ::sigaddset(&termination, SIGTERM);
  ::pthread_sigmask(SIG_BLOCK, &termination, nullptr);
  for (const int signal : {SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGPIPE}) ::signal(signal, SIG_IGN);
  const auto line = read_input_line();
  if (!line) return 1;
  const pid_t pid = ::fork();
  if (pid < 0) {
    write_line(fmt::format("error {}", base::system_error("starting a witness (fork)", errno).what()));
    return 1;
  }
  if (pid > 0) return 0;
  ::_exit(stay(*line));
}

}  // namespace ddp::srun_plugin
