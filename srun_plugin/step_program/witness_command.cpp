#include "step_program/witness_command.hpp"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>
#include <ddp/version.hpp>

#include "base/left_scratch.hpp"
#include "base/stderr_line.hpp"
#include "base/system_error.hpp"
#include "base/unique_fd.hpp"
#include "ddp_step_client.hpp"
#include "step_program/end_reporter.hpp"
#include "step_program/hang_watch.hpp"
#include "step_program/input_line.hpp"
#include "step_program/node_watch.hpp"
#include "step_program/ranks_store.hpp"
#include "store_server/witness.hpp"

namespace ddp::srun_plugin {
namespace {

// The plugin waits a little longer.
constexpr std::chrono::seconds kReachLimit{5};
// The next one removes the rest.
constexpr std::chrono::seconds kSweepLimit{1};
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

/// Of jobs that Slurm killed, while the node's tasks start: a slow file system delays neither them nor their reports.
std::jthread start_sweep() {
  const char* const folder = std::getenv("TMPDIR");
  return std::jthread{[parent = std::string{folder != nullptr && *folder != '\0' ? folder : "/tmp"}] {
    base::remove_left_scratch(parent, Deadline::after(kSweepLimit));
  }};
}

int stay(const std::string& line) {
  try {
    std::istringstream fields(line);
    std::string address, key;
    std::uint16_t port = 0;
    ReportingNode node;
    bool has_channel = false;
    WatchedNode watched;
    std::string metrics_port;
    std::int64_t report_seconds = 0;
    RanksStoreOptions ranks_store;
    std::int64_t patience_seconds = 0;
    std::int64_t hang_seconds = 0;
    fields >> address >> port >> key >> node.name >> node.step.node_list >> node.step.world_size >> node.first_rank >>
        has_channel >> ranks_store.has_rank_0 >> patience_seconds >> hang_seconds >> watched.step >>
        watched.num_nodes >> watched.local_tasks >> metrics_port >> watched.metrics_address >> report_seconds >>
        std::ws;
    std::getline(fields, watched.program);
    if (metrics_port != "none") watched.metrics_port = static_cast<std::uint16_t>(std::stoul(metrics_port));
    watched.report_interval = std::chrono::seconds{report_seconds};
    watched.node = node.name;
    watched.world_size = node.step.world_size;
    const Deadline deadline = Deadline::after(kReachLimit);
    store_server::Witness witness(address, port, store_server::StoreKey::parse(key), deadline);
    store_server::check_served(address, port, deadline);
    std::optional<EndReporter> reporter;
    const std::string node_name = node.name;
    reporter.emplace(address, port, std::move(node));
    ranks_store.srun_address = address;
    ranks_store.srun_port = port;
    ranks_store.key = store_server::StoreKey::parse(key);
    ranks_store.node = node_name;
    ranks_store.patience = std::chrono::seconds{patience_seconds};
    std::optional<NodeWatch> watch;
    std::optional<HangWatch> hang;
    const HangWatchOptions hang_options{.address = address,
                                        .port = port,
                                        .node = node_name,
                                        .local_tasks = watched.local_tasks,
                                        .world_size = watched.world_size,
                                        .after = std::chrono::seconds{hang_seconds}};
    bool refused = false;
    try {
      if (has_channel && (watched.metrics_port || report_seconds > 0)) watch.emplace(std::move(watched));
      if (watch && !watch->chosen_url().empty())
        base::write_stderr_line(fmt::format("ddp: {}: metrics at {}", node_name, watch->chosen_url()));
      write_line(kKnown);
    } catch (const Error& error) {
      // It stays, and so reports that the tasks end.
      refused = true;
      write_line(fmt::format("ddp-step 1 refused {}", error.what()));
    }
    RanksStore ranks(std::move(ranks_store), STDOUT_FILENO);
    if (has_channel && hang_seconds > 0) hang.emplace(hang_options);
    let_go_of_the_task();
    const std::jthread sweep = start_sweep();
    if (has_channel) {
      reporter->run(DdpStepClient::kInheritedFd, watch ? &*watch : nullptr, hang ? &*hang : nullptr, refused);
    } else {
      reporter.reset();
      witness.wait();
      ranks.wait();
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
