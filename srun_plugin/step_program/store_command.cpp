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

#include "base/socket.hpp"
#include "base/unique_fd.hpp"
#include "store_server/store_server.hpp"

namespace ddp::srun_plugin {
namespace {

using store_server::StoreServer;

// srun writes it before it starts this program.
constexpr std::chrono::seconds kSecretLimit{10};
constexpr std::size_t kLongestSecret = 256;

void write_line(const std::string& line) {
  const std::string text = line + "\n";
  [[maybe_unused]] const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
}

/// Nothing at the end of standard input, or of the time.
std::optional<std::string> read_secret() {
  const Deadline deadline = Deadline::after(kSecretLimit);
  std::string secret;
  while (secret.size() < kLongestSecret && base::wait_for(STDIN_FILENO, POLLIN, deadline)) {
    char letter = 0;
    const ssize_t count = ::read(STDIN_FILENO, &letter, 1);
    if (count == 0 || (count < 0 && errno != EINTR && errno != EAGAIN)) return std::nullopt;
    if (count < 0) continue;
    if (letter == '\n') return secret;
    secret += letter;
  }
  return std::nullopt;
}

void wait_for_end_of_input() {
  std::array<char, 64> block{};
  while (true) {
    const ssize_t count = ::read(STDIN_FILENO, block.data(), block.size());
    if (count == 0 || (count < 0 && errno != EINTR && errno != EAGAIN)) return;
    if (count < 0) base::wait_for(STDIN_FILENO, POLLIN, Deadline::after(std::chrono::hours(1)));
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
    const auto secret = read_secret();
    if (!secret) return 1;
    // Tasks on this host must request admission, too: other users' processes may run here.
    server.emplace(store_server::StoreServerOptions{.listen_addresses = {},
                                                    .allowed_clients = {},
                                                    .admission_secret = *secret,
                                                    .admit_loopback = false,
                                                    .port = 0,
                                                    .port_range = ports,
                                                    .validation_limit = std::chrono::seconds(10),
                                                    .max_unadmitted = 1024});
  } catch (const std::exception& error) {
    write_line(fmt::format("error {}", error.what()));
    return 1;
  }
  write_line(fmt::format("ddp-step 1 port {}", server->port()));
  // srun reads no further, and a shared end of the step's output must not outlive srun's.
  const base::UniqueFd nothing{::open("/dev/null", O_RDWR | O_CLOEXEC)};
  if (nothing) {
    ::dup2(nothing.get(), STDOUT_FILENO);
    ::dup2(nothing.get(), STDERR_FILENO);
  }
  wait_for_end_of_input();
  return 0;
}

}  // namespace ddp::srun_plugin
