#include "launch/launcher_process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <optional>
#include <string_view>

#include <fmt/format.h>

#include "base/errors.hpp"
#include "base/log.hpp"

namespace ddp::launcher {
namespace {

std::vector<char*> pointers_to(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& text : strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

/// After fork(2), maybe of a process with several threads: only what is safe in a signal handler.
[[noreturn]] void become(const LauncherCommand& command, char* const* arguments, char* const* environment,
                         pid_t parent) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(1);
  const int error = command.keeps_error ? ::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 10) : -1;
  ::dup2(command.standard_input, STDIN_FILENO);
  ::dup2(command.standard_error, STDERR_FILENO);
  if (error >= 0) ::dup2(error, 3);  // after those that may be number 3
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::signal(SIGPIPE, SIG_DFL);
  ::execve(command.path.c_str(), arguments, environment);
  for (const std::string_view part :
       {std::string_view("ddprun: "), std::string_view(command.path), std::string_view(" cannot be executed\n")}) {
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, part.data(), part.size());
  }
  ::_exit(127);
}

}  // namespace

base::ChildProcess start_launcher(LauncherCommand command) {
  std::vector<std::string> lines = environment_lines(command.environment);
  const std::vector<char*> arguments = pointers_to(command.words);
  const std::vector<char*> variables = pointers_to(lines);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0) become(command, arguments.data(), variables.data(), parent);
  if (pid < 0)
    throw base::system_error(fmt::format("starting {}", command.words.front()), errno,
                             "check the limit of processes (ulimit -u)");
  return base::ChildProcess{pid};
}

std::string own_path() {
  char path[4096];
  const ssize_t size = ::readlink("/proc/self/exe", path, sizeof path);
  return size > 0 ? std::string(path, static_cast<std::size_t>(size)) : std::string{"ddprun"};
}

namespace {

// For srun to notice the end of its tasks, and ssh that of its agent.
constexpr std::chrono::seconds kPatience{15};
// The same at least, where the end of the job is limited; then for SIGTERM to take effect.
constexpr std::chrono::milliseconds kLeastPatience{300};
constexpr std::chrono::milliseconds kEndLimit{700};
// For srun to notice the end of the other tasks, where a node is lost.
constexpr std::chrono::seconds kLostNodePatience{1};
// For SIGTERM, after a job whose end is not limited.
constexpr std::chrono::seconds kTermPatience{10};
constexpr std::chrono::milliseconds kReaderCheck{200};

/// Launchers wait for it until Slurm, or TCP, gives it up.
bool a_node_is_lost(const Coordinator& coordinator) {
  const JobAttempt* attempt = coordinator.last_attempt();
  return attempt != nullptr && std::any_of(attempt->nodes().begin(), attempt->nodes().end(),
                                           [](const AttemptNode& node) { return node.state == NodeState::lost; });
}

}  // namespace

bool readers_keep_up() {
  std::array<pollfd, 2> streams{pollfd{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0},
                                pollfd{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0}};
  ::poll(streams.data(), streams.size(), 0);
  return std::all_of(streams.begin(), streams.end(), [](const pollfd& stream) { return stream.revents != 0; });
}

void end_launchers(stream::EventLoop& loop, Coordinator& coordinator, const RunningLaunchers& launchers) {
  const auto begin = Deadline::Clock::now();
  while (!launchers.ended()) {
    const bool kept_up = readers_keep_up();
    Deadline limit{begin + kPatience};
    if (!kept_up) limit = Deadline{limit.when() + coordinator.drain_time()};
    Deadline last = Deadline::after(kTermPatience);
    const std::optional<Deadline> end = coordinator.end_by();
    if (end && kept_up) {
      const Deadline least{begin + kLeastPatience};
      const Deadline latest{end->when() - kEndLimit};
      limit = latest < least ? least : latest;
      if (a_node_is_lost(coordinator)) limit = earlier(limit, Deadline{begin + kLostNodePatience});
      last = Deadline::after(kEndLimit);
    }
    if (limit.expired()) {
      if (!end) base::write_stderr_line(fmt::format("ddprun: {} did not exit in time; ending it", launchers.name));
      return launchers.end(last);
    }
    loop.run_once(earlier(limit, Deadline::after(kReaderCheck)));
  }
}

}  // namespace ddp::launcher
