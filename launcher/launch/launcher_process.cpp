#include "launch/launcher_process.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <cerrno>
#include <string_view>

#include <fmt/format.h>

#include "base/errors.hpp"

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
  ::dup2(command.standard_input, STDIN_FILENO);
  ::dup2(command.standard_error, STDERR_FILENO);
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

}  // namespace ddp::launcher
