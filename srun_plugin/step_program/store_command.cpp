#include "step_program/store_command.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <exception>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "base/stderr_line.hpp"
#include "base/unique_fd.hpp"
#include "step_program/input_line.hpp"
#include "store_server/store_server.hpp"

namespace ddp::srun_plugin {
namespace {

using store_server::StoreServer;

void write_line(const std::string& line) {
  const std::string text = line + "\n";
  [[maybe_unused]] const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
}

/// Passes on what the store says of connections that it refused, until standard input ends.
void serve_until_input_ends(StoreServer& server) {
  // On srun's standard error, as srun's own warnings. It ends with this program, which ends with srun.
  for (;;) {
    pollfd entries[] = {{.fd = STDIN_FILENO, .events = POLLIN, .revents = 0},
                        {.fd = server.refusals_fd(), .events = POLLIN, .revents = 0}};
    if (::poll(entries, 2, -1) < 0 && errno != EINTR) return;
    if (entries[1].revents != 0) {
      for (const std::string& line : server.take_refusals())
        base::write_stderr_line(fmt::format("srun: ddp: warning: the step's store {}", line), base::kLinePatience,
                                STDIN_FILENO);
    }
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

int serve_store(std::optional<store_server::PortRange> ports) {
  ignore_signals();
  raise_descriptor_limit();
  std::optional<StoreServer> server;
  try {
    const auto secret = read_input_line();
    if (!secret) return 1;
    server.emplace(
        store_server::StoreServerOptions{.key = store_server::StoreKey::parse(*secret), .port_range = ports});
  } catch (const std::exception& error) {
    write_line(fmt::format("error {}", error.what()));
    return 1;
  }
  write_line(fmt::format("ddp-step 1 port {}", server->port()));
  // srun reads no further.
  const base::UniqueFd nothing{::open("/dev/null", O_RDWR | O_CLOEXEC)};
  if (nothing) ::dup2(nothing.get(), STDOUT_FILENO);
  serve_until_input_ends(*server);
  return 0;
}

}  // namespace ddp::srun_plugin
