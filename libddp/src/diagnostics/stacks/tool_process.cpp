#include "diagnostics/stacks/tool_process.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <thread>

#include <fmt/format.h>

#include "base/child_process.hpp"
#include "base/system_error.hpp"
#include "base/unique_fd.hpp"

namespace ddp::diagnostics {
namespace {

// A debugger's output for thousands of threads.
constexpr std::size_t kMaxOutputBytes = std::size_t{4} << 20U;
// For a killed tool to end; one that hangs in the kernel is given up.
constexpr std::chrono::seconds kKillLimit{2};
// For the threads that a killed debugger had stopped to wait again where they stood.
constexpr std::chrono::milliseconds kResume{100};

/// Reads what there is. @return false at the end
bool read_some(int fd, std::string& text) {
  std::array<char, 16384> piece;
  const ssize_t size = ::read(fd, piece.data(), piece.size());
  if (size < 0) return errno == EINTR || errno == EAGAIN;
  if (text.size() < kMaxOutputBytes) text.append(piece.data(), static_cast<std::size_t>(size));
  return size > 0;
}

struct Pipe {
  Pipe() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw base::system_error("making a pipe", errno);
    read.reset(ends[0]);
    write.reset(ends[1]);
  }
  base::UniqueFd read, write;
};

std::vector<char*> null_terminated(std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  for (std::string& text : strings) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

/// Between fork and exec, where other threads may hold any lock: async-signal-safe calls alone.
[[noreturn]] void become_tool(char* const* command, char* const* environment, pid_t parent, int out, int err,
                              int report) noexcept {
  ::setsid();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // that died before the prctl
  const int null_device = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  if (null_device >= 0) ::dup2(null_device, STDIN_FILENO);
  struct sigaction action {};
  action.sa_handler = SIG_DFL;
  for (int signal = 1; signal < NSIG; ++signal) ::sigaction(signal, &action, nullptr);
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  if (::dup2(out, STDOUT_FILENO) >= 0 && ::dup2(err, STDERR_FILENO) >= 0) ::execve(command[0], command, environment);
  const int number = errno;
  [[maybe_unused]] const ssize_t written = ::write(report, &number, sizeof number);
  ::_exit(127);
}

}  // namespace

ToolOutput run_tool(std::vector<std::string> command, std::vector<std::string> environment, Deadline deadline) {
  Pipe out, err, report;
  const std::vector<char*> arguments = null_terminated(command);
  const std::vector<char*> variables = null_terminated(environment);
  const pid_t own = ::getpid();
  const pid_t pid = ::fork();
  if (pid == 0)
    become_tool(arguments.data(), variables.data(), own, out.write.get(), err.write.get(), report.write.get());
  if (pid < 0) throw base::system_error(fmt::format("starting {}", command.front()), errno);
  base::ChildProcess process{pid};
  for (Pipe* pipe : {&out, &err, &report}) pipe->write.reset();

  ToolOutput said;
  std::string failure;
  std::array<pollfd, 3> streams{pollfd{.fd = out.read.get(), .events = POLLIN, .revents = 0},
                                pollfd{.fd = err.read.get(), .events = POLLIN, .revents = 0},
                                pollfd{.fd = report.read.get(), .events = POLLIN, .revents = 0}};
  const std::array<std::string*, 3> texts{&said.out, &said.err, &failure};
  const auto open = [&] { return streams[0].fd >= 0 || streams[1].fd >= 0 || streams[2].fd >= 0; };
  while (open() && !deadline.expired()) {
    if (::poll(streams.data(), streams.size(), deadline.poll_timeout_ms()) <= 0) continue;
    for (std::size_t i = 0; i < streams.size(); ++i) {
      if (streams[i].revents != 0 && !read_some(streams[i].fd, *texts[i])) streams[i].fd = -1;
    }
  }
  said.in_time = !open();
  ::kill(-pid, SIGKILL);
  process.wait(Deadline::after(kKillLimit));
  if (failure.size() == sizeof(int)) {
    int number = 0;
    failure.copy(reinterpret_cast<char*>(&number), sizeof number);
    throw base::system_error(fmt::format("executing {}", command.front()), number);
  }
  if (!said.in_time) std::this_thread::sleep_for(kResume);
  return said;
}

}  // namespace ddp::diagnostics
