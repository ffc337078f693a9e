#include "workers/spawn.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <filesystem>

#include <fmt/format.h>

#include "base/errors.hpp"
#include "base/log.hpp"
#include "base/socket.hpp"
#include "outcome/exit_error.hpp"
#include "topology/placement/rank_resources.hpp"

#ifndef CLOSE_RANGE_CLOEXEC
#define CLOSE_RANGE_CLOEXEC (1U << 2)
#endif

namespace ddp::launcher {
namespace {

enum class Step : int {
  session,
  parent_death,
  input,
  streams,
  descriptors,
  binding,
  execute,
  narrowed_mask,
  refused_memory
};

/// What a child writes to the pipe: warnings, and why it could not execute its program. Smaller than PIPE_BUF, so it
/// arrives whole.
struct ChildFailure {
  Step step;
  int number;  ///< errno
};
static_assert(sizeof(ChildFailure) <= PIPE_BUF);

/// All that the child needs, prepared before fork: the PMIx library's thread may hold any lock, so only
/// async-signal-safe calls are allowed between fork and exec.
struct ChildPlan {
  const char* path;
  char* const* arguments;
  char* const* environment;
  rlimit descriptor_limit;
  bool ignore_hangup;
  const topology::AffinityMask* affinity;  ///< null: none
  pid_t parent;
  int standard_input;
  int standard_output;
  int standard_error;
  int report_fd;
};

void report(const ChildPlan& plan, Step step) noexcept {
  const ChildFailure failure{.step = step, .number = errno};
  // If this fails, the parent is gone.
  [[maybe_unused]] const ssize_t written = ::write(plan.report_fd, &failure, sizeof failure);
}

[[noreturn]] void give_up(const ChildPlan& plan, Step step) noexcept {
  report(plan, step);
  ::_exit(127);
}

void reset_signals(bool ignore_hangup) noexcept {
  struct sigaction action {};
  sigemptyset(&action.sa_mask);
  for (int signal = 1; signal < NSIG; ++signal) {
    action.sa_handler = ignore_hangup && signal == SIGHUP ? SIG_IGN : SIG_DFL;
    ::sigaction(signal, &action, nullptr);  // fails for SIGKILL, SIGSTOP and glibc's own two
  }
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
}

/// Marks all descriptors above standard error close-on-exec.
void close_descriptors_on_exec(rlim_t limit) noexcept {
  if (::syscall(SYS_close_range, 3U, ~0U, CLOSE_RANGE_CLOEXEC) == 0) return;
  // Linux before 5.11. The kernel gives out the lowest numbers, so there are none beyond the first 64 Ki.
  const int end = static_cast<int>(std::min<rlim_t>(limit, 65536));
  for (int fd = 3; fd < end; ++fd) ::fcntl(fd, F_SETFD, FD_CLOEXEC);
}

[[noreturn]] void become_program(const ChildPlan& plan, rlim_t own_limit) noexcept {
  if (::setsid() < 0) give_up(plan, Step::session);
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) give_up(plan, Step::parent_death);
  // No signal comes from a parent that died before the prctl.
  if (::getppid() != plan.parent) ::_exit(127);
  // Debuggers are no ancestors of the rank (diagnostics/stacks). Without Yama there is no such call, and no need for
  // it.
  ::prctl(PR_SET_PTRACER, plan.parent);
  if (plan.standard_input != STDIN_FILENO) {
    const int input = plan.standard_input < 0 ? ::open("/dev/null", O_RDONLY | O_CLOEXEC) : plan.standard_input;
    if (input < 0 || ::dup2(input, STDIN_FILENO) < 0) give_up(plan, Step::input);
  }
  // Each is above 2 or in place already, so the first cannot overwrite the second.
  if (plan.standard_output != STDOUT_FILENO && ::dup2(plan.standard_output, STDOUT_FILENO) < 0)
    give_up(plan, Step::streams);
  if (plan.standard_error != STDERR_FILENO && ::dup2(plan.standard_error, STDERR_FILENO) < 0)
    give_up(plan, Step::streams);
  close_descriptors_on_exec(own_limit);
  if (::setrlimit(RLIMIT_NOFILE, &plan.descriptor_limit) != 0) give_up(plan, Step::descriptors);
  if (plan.affinity != nullptr) {
    if (!plan.affinity->bind(0)) give_up(plan, Step::binding);
    if (!plan.affinity->is_bound()) report(plan, Step::narrowed_mask);
    if (!plan.affinity->prefer_memory()) report(plan, Step::refused_memory);
  }
  reset_signals(plan.ignore_hangup);
  ::execve(plan.path, plan.arguments, plan.environment);
  give_up(plan, Step::execute);
}

std::vector<char*> null_terminated(const std::vector<std::string>& strings) {
  std::vector<char*> pointers;
  pointers.reserve(strings.size() + 1);
  for (const std::string& text : strings) pointers.push_back(const_cast<char*>(text.c_str()));
  pointers.push_back(nullptr);
  return pointers;
}

[[noreturn]] void throw_failure(const SpawnRequest& request, const ChildFailure& failure) {
  const std::string attempted = fmt::format("starting rank {} ('{}')", request.rank, request.path);
  if (failure.step != Step::execute) {
    const char* hint = failure.step == Step::input         ? "is there a /dev/null? --stdin all does without"
                       : failure.step == Step::descriptors ? "check the limit of open files (ulimit -n)"
                       : failure.step == Step::binding     ? "--bind none starts it unbound"
                                                           : "";
    throw base::system_error(attempted, failure.number, hint);
  }
  const char* hint =
      failure.number == ENOEXEC  ? "it is neither an executable for this machine nor a script with a '#!' line"
      : failure.number == ENOENT ? "the interpreter in its '#!' line, or the loader it was linked for, does not exist"
      : failure.number == E2BIG  ? "its arguments and environment together are too long"
                                 : "";
  throw ExitError{kExitNotExecutable,
                  {.code = ErrorCode::system,
                   .attempted = attempted,
                   .cause = base::errno_text(failure.number),
                   .native = base::errno_name(failure.number),
                   .hint = hint}};
}

/// The child's next record; nothing once it executes its program.
std::optional<ChildFailure> read_failure(int fd) {
  ChildFailure failure{};
  ssize_t size = 0;
  do {
    size = ::read(fd, &failure, sizeof failure);
  } while (size < 0 && errno == EINTR);
  return size == sizeof failure ? std::optional{failure} : std::nullopt;
}

bool is_notice(const ChildFailure& failure) {
  return failure.step == Step::narrowed_mask || failure.step == Step::refused_memory;
}

void warn(const SpawnRequest& request, const ChildFailure& notice) {
  if (notice.step == Step::narrowed_mask) {
    base::write_stderr_line(
        fmt::format("ddprun: warning: rank {} got only some of the processors {}; the job's cpuset may have changed",
                    request.rank, request.binding->cpus.to_string()));
  } else {
    base::write_stderr_line(fmt::format("ddprun: warning: rank {} cannot prefer the memory of NUMA node {}: {} [{}]",
                                        request.rank, request.binding->preferred_memory,
                                        base::errno_text(notice.number), base::errno_name(notice.number)));
  }
}

}  // namespace

StartingWorker start_worker(SpawnRequest request) {
  const std::string attempted = fmt::format("starting rank {}", request.rank);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    throw base::system_error(attempted, errno, "check the limit of open files (ulimit -n)");
  base::UniqueFd report{ends[0]};
  const base::UniqueFd child_end{ends[1]};

  const std::vector<char*> arguments = null_terminated(request.arguments);
  const std::vector<char*> environment = null_terminated(request.environment);
  std::optional<topology::AffinityMask> affinity;
  if (request.binding) affinity.emplace(*request.binding);
  rlimit own_limit{};
  ::getrlimit(RLIMIT_NOFILE, &own_limit);
  const ChildPlan plan{.path = request.path.c_str(),
                       .arguments = arguments.data(),
                       .environment = environment.data(),
                       .descriptor_limit = request.descriptor_limit,
                       .ignore_hangup = request.ignore_hangup,
                       .affinity = affinity ? &*affinity : nullptr,
                       .parent = ::getpid(),
                       .standard_input = request.standard_input,
                       .standard_output = request.standard_output,
                       .standard_error = request.standard_error,
                       .report_fd = child_end.get()};

  const pid_t pid = ::fork();
  if (pid == 0) become_program(plan, own_limit.rlim_cur);
  if (pid < 0) throw base::system_error(attempted, errno, "check the limit of processes (ulimit -u) and of the cgroup");
  return {std::move(request), base::ChildProcess{pid}, std::move(report)};
}

SpawnedProcess StartingWorker::confirm(Deadline deadline) {
  const std::string attempted = fmt::format("starting rank {}", request_.rank);
  // Executing the program closes the pipe.
  while (report_) {
    if (!base::wait_for(report_.get(), POLLIN, deadline)) {
      throw Error{{.code = ErrorCode::timeout,
                   .attempted = attempted,
                   .cause = fmt::format("'{}' was not executed in time", request_.path),
                   .native = base::errno_name(ETIMEDOUT),
                   .hint = "does the file system that holds it answer?"}};
    }
    const auto failure = read_failure(report_.get());
    if (!failure) break;
    if (!is_notice(*failure)) throw_failure(request_, *failure);
    warn(request_, *failure);
  }
  report_.reset();
  const pid_t pid = process_.pid();
  return {.pid = pid, .pidfd = process_.release()};
}

}  // namespace ddp::launcher

namespace ddp::launcher {

std::string find_ddp_info() {
  std::error_code ignored;
  const auto own = std::filesystem::read_symlink("/proc/self/exe", ignored);
  const std::string path = (own.parent_path() / "ddp-info").string();
  if (::access(path.c_str(), X_OK) == 0) return path;
  throw ExitError{kExitNotFound,
                  {.code = ErrorCode::not_found,
                   .attempted = "preparing --dump-env",
                   .cause = fmt::format("{} is missing", path),
                   .hint = "install ddp-info beside ddprun, or leave the option out"}};
}

void dump_environment_first(SpawnRequest& request, const std::string& ddp_info, const std::string& destination) {
  std::vector<std::string> words{"ddp-info", "before", "--dump", destination, "--", request.path};
  words.insert(words.end(), request.arguments.begin(), request.arguments.end());
  request.arguments = std::move(words);
  request.path = ddp_info;
}

}  // namespace ddp::launcher
