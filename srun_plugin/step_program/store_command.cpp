#include "step_program/store_command.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <exception>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/unique_fd.hpp"
#include "step_program/input_line.hpp"
#include "step_program/step_desk.hpp"
#include "step_program/step_watch.hpp"
#include "store_server/store_server.hpp"

namespace ddp::srun_plugin {
namespace {

using store_server::StoreServer;

void tell_plugin(const std::string& line) {
  const std::string text = line + "\n";
  [[maybe_unused]] const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
}

/// The watch is a comfort, and so is the log: without them the store serves on. The user has asked for the log, so its
/// end is said.
template <class Watch, class Function>
void watching(std::optional<Watch>& watch, Function&& function) {
  if (!watch) return;
  try {
    function();
  } catch (const std::exception& error) {
    watch.reset();
    if constexpr (std::is_same_v<Watch, StepLog>)
      base::write_stderr_line(fmt::format("srun: ddp: warning: the step's event log ends here: {}", error.what()));
  }
}

void say(const std::vector<std::string>& lines) {
  for (const std::string& line : lines) base::write_stderr_line(line);
}

/// Passes on what the store says of connections that it refused, and what there is to say of the step's end, until
/// standard input ends.
void serve_until_input_ends(StoreServer& server, std::optional<StepWatch>& watch, std::optional<StepLog>& log,
                            std::optional<StepDesk>& desk) {
  // On srun's standard error, as srun's own warnings. It ends with this program, which ends with srun.
  for (;;) {
    const bool due = watch && watch->due();
    pollfd entries[] = {{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0},
                        {.fd = server.refusals_fd(), .events = POLLIN, .revents = 0},
                        {.fd = watch && !watch->failed() ? watch->fd() : -1, .events = POLLIN, .revents = 0},
                        {.fd = log ? log->fd() : -1, .events = POLLIN, .revents = 0},
                        {.fd = desk ? desk->fd() : -1, .events = POLLIN, .revents = 0}};
    const bool collects = log && log->due();
    const auto look = desk ? desk->due() : std::nullopt;
    int timeout_ms = due ? watch->due()->poll_timeout_ms() : -1;
    if (collects && (timeout_ms < 0 || log->due()->poll_timeout_ms() < timeout_ms))
      timeout_ms = log->due()->poll_timeout_ms();
    if (look && (timeout_ms < 0 || look->poll_timeout_ms() < timeout_ms)) timeout_ms = look->poll_timeout_ms();
    if (::poll(entries, 5, timeout_ms) < 0 && errno != EINTR) return;
    if (entries[1].revents != 0) {
      for (const std::string& line : server.take_refusals())
        base::write_stderr_line(fmt::format("srun: ddp: warning: the step's store {}", line), base::kLinePatience,
                                STDIN_FILENO);
    }
    if (entries[2].revents != 0) watching(watch, [&] { watch->note_failure(); });
    if (due && watch && watch->due()->expired()) watching(watch, [&] { say(watch->lines()); });
    if (entries[4].revents != 0 || (look && look->expired())) watching(desk, [&] { say(desk->advance()); });
    if (entries[3].revents != 0) watching(log, [&] { log->advance(); });
    if (collects && log && log->due()->expired()) watching(log, [&] { log->collect(); });
    if (entries[0].revents == 0) continue;
    std::array<char, 64> block{};
    const ssize_t count = ::read(STDIN_FILENO, block.data(), block.size());
    if (count == 0 || (count < 0 && errno != EINTR && errno != EAGAIN)) return;
  }
}

/// When srun runs in a batch script, Slurm signals all processes there, including this one, at scancel, preemption and
/// the time limit. Ranks that save their state then still need the store.
void ignore_signals() {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGPIPE})
    ::signal(signal, SIG_IGN);
}

/// Each rank has a connection or more. srun raises its own limit only when it launches tasks, after the store of a
/// heterogeneous step has started.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

int serve_store(const StoreCommand& command) {
  ignore_signals();
  raise_descriptor_limit();
  std::optional<StoreServer> server;
  try {
    const auto secret = read_input_line();
    if (!secret) return 1;
    server.emplace(
        store_server::StoreServerOptions{.key = store_server::StoreKey::parse(*secret), .port_range = command.ports});
  } catch (const std::exception& error) {
    tell_plugin(fmt::format("error {}", error.what()));
    return 1;
  }
  tell_plugin(fmt::format("ddp-step 1 port {}", server->port()));
  // srun reads no further before the end.
  const base::UniqueFd plugin{::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1)};
  const base::UniqueFd nothing{::open("/dev/null", O_RDWR | O_CLOEXEC)};
  if (nothing) ::dup2(nothing.get(), STDOUT_FILENO);
  std::optional<StepWatch> watch;
  try {
    watch.emplace(server->port(), command.failure_ends_step, command.nodes_expected);
  } catch (const std::exception&) {  // who watches is less than what is watched
  }
  std::optional<StepLog> log;
  try {
    if (!command.log.path.empty()) log.emplace(server->port(), command.log);
  } catch (const std::exception& error) {
    base::write_stderr_line(fmt::format("srun: ddp: warning: {}; the step has no event log", error.what()));
  }
  std::optional<StepDesk> desk;
  try {
    desk.emplace(server->port(), command.hang_report_after);
  } catch (const std::exception& error) {
    base::write_stderr_line(fmt::format(
        "srun: ddp: warning: {}; of this step it is not told who hangs, nor what its nodes warn of", error.what()));
  }
  serve_until_input_ends(*server, watch, log, desk);
  watching(desk, [&] { say(desk->advance()); });
  watching(watch, [&] { say(watch->lines()); });
  watching(log, [&] { log->end(); });
  if (watch && watch->failure() && plugin) {
    const int status = watch->failure()->status;
    base::write_line(plugin.get(),
                     fmt::format("failure {}", WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status)),
                     base::kLinePatience);
  }
  return 0;
}

}  // namespace ddp::srun_plugin
