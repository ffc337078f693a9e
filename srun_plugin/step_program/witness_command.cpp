#include "step_program/witness_command.hpp"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>
#include <ddp/version.hpp>

#include "base/errors.hpp"
#include "base/left_scratch.hpp"
#include "base/library_thread.hpp"
#include "base/log.hpp"
#include "base/unique_fd.hpp"
#include "srun_side/ddp_step_client.hpp"
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

/// Of jobs that Slurm killed, while the node's tasks start: a slow file system delays neither them nor their reports,
/// and one that does not answer does not keep this process, whose end Slurm waits for.
void start_sweep() {
  const char* const folder = std::getenv("TMPDIR");
  try {
    base::start_thread([parent = std::string{folder != nullptr && *folder != '\0' ? folder : "/tmp"}] {
      base::remove_left_scratch(parent, Deadline::after(kSweepLimit));
    }).detach();
  } catch (const std::exception&) {  // no more threads: the next one removes them
  }
}

/// What the plugin says of the step and of this node.
struct Orders {
  std::string address, key;
  std::uint16_t port = 0;
  ReportingNode node;
  bool has_channel = false;
  WatchedNode watched;
  RanksStoreOptions ranks_store;
  std::chrono::seconds hang_after{0};  ///< 0: hangs are not looked for
};

/// Whether one of the fields before the program is missing or empty, which would make each later one that before it.
bool lacks_field(const std::string& line) {
  constexpr int kFields = 17;
  std::size_t begin = 0;
  for (int field = 0; field < kFields; ++field) {
    const std::size_t end = line.find(' ', begin);
    if (end == std::string::npos || end == begin) return true;
    begin = end + 1;
  }
  return false;
}

/// @p line: see node_questions.cpp. Throws Error(protocol) where a field is missing or is none of its kind.
Orders parse_orders(const std::string& line) {
  Orders orders;
  ReportingNode& node = orders.node;
  WatchedNode& watched = orders.watched;
  std::string metrics_port;
  std::int64_t report_seconds = -1, patience_seconds = -1, hang_seconds = -1;
  std::istringstream fields(line);
  fields >> orders.address >> orders.port >> orders.key >> node.name >> node.step.node_list >> node.step.world_size >>
      node.first_rank >> orders.has_channel >> orders.ranks_store.has_rank_0 >> patience_seconds >> hang_seconds >>
      watched.step >> watched.num_nodes >> watched.local_tasks >> metrics_port >> watched.metrics_address >>
      report_seconds;
  const bool whole = !lacks_field(line) && !fields.fail() && node.step.world_size > 0 && node.first_rank >= 0 &&
                     watched.num_nodes > 0 && watched.local_tasks > 0 && report_seconds >= 0 && patience_seconds >= 0 &&
                     hang_seconds >= 0;
  std::uint16_t port = 0;
  const char* const end = metrics_port.data() + metrics_port.size();
  const auto read = std::from_chars(metrics_port.data(), end, port);
  const bool has_port = read.ec == std::errc{} && read.ptr == end;
  if (!whole || (!has_port && metrics_port != "none")) {
    throw Error{{.code = ErrorCode::protocol,
                 .attempted = "reading what the plugin says of the step",
                 .cause = fmt::format("its line of {} bytes lacks a field, or has one of another kind", line.size()),
                 .hint = "install libddp's plugin and ddp-step from one package"}};
  }
  if (has_port) watched.metrics_port = port;
  std::getline(fields >> std::ws, watched.program);
  watched.report_interval = std::chrono::seconds{report_seconds};
  watched.node = node.name;
  watched.world_size = node.step.world_size;
  orders.ranks_store.srun_address = orders.address;
  orders.ranks_store.srun_port = orders.port;
  orders.ranks_store.key = store_server::StoreKey::parse(orders.key);
  orders.ranks_store.node = node.name;
  orders.ranks_store.patience = std::chrono::seconds{patience_seconds};
  orders.hang_after = std::chrono::seconds{hang_seconds};
  return orders;
}

int stay(const std::string& line) {
  try {
    auto [address, key, port, node, has_channel, watched, ranks_store, hang_after] = parse_orders(line);
    const bool reports = watched.report_interval > std::chrono::seconds{0};
    const Deadline deadline = Deadline::after(kReachLimit);
    store_server::Witness witness(address, port, store_server::StoreKey::parse(key), deadline);
    store_server::check_served(address, port, deadline);
    std::optional<EndReporter> reporter;
    const std::string node_name = node.name;
    reporter.emplace(address, port, std::move(node));
    std::optional<NodeWatch> watch;
    std::optional<HangWatch> hang;
    const HangWatchOptions hang_options{.address = address,
                                        .port = port,
                                        .node = node_name,
                                        .local_tasks = watched.local_tasks,
                                        .world_size = watched.world_size,
                                        .after = hang_after};
    bool refused = false;
    try {
      if (has_channel && (watched.metrics_port || reports)) watch.emplace(std::move(watched));
      if (watch && !watch->chosen_url().empty())
        base::write_stderr_line(fmt::format("ddp: {}: metrics at {}", node_name, watch->chosen_url()));
      write_line(kKnown);
    } catch (const Error& error) {
      // It stays, and so reports that the tasks end.
      refused = true;
      write_line(fmt::format("ddp-step 1 refused {}", error.what()));
    }
    RanksStore ranks(std::move(ranks_store), STDOUT_FILENO);
    if (has_channel && hang_after > std::chrono::seconds{0}) hang.emplace(hang_options);
    let_go_of_the_task();
    start_sweep();
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
