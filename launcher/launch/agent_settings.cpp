#include "launch/agent_settings.hpp"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstddef>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/errors.hpp"
#include "base/host_name.hpp"
#include "base/message.hpp"
#include "base/socket.hpp"
#include "base/unique_fd.hpp"
#include "launch/launch_role.hpp"

namespace ddp::launcher {
namespace {

constexpr std::string_view kMagic = "ddprun-agent";
constexpr std::size_t kMostFirstLineBytes = 256;
// Linux limits arguments and environment of a process to a quarter of its stack, 2 MiB by default (execve(2)).
constexpr std::size_t kMostBytes = std::size_t{64} << 20U;

constexpr std::array<std::string_view, 28> kHostNames{"HOME",
                                                      "USER",
                                                      "LOGNAME",
                                                      "USERNAME",
                                                      "SHELL",
                                                      "MAIL",
                                                      "HOSTNAME",
                                                      "HOST",
                                                      "HOSTTYPE",
                                                      "TERM",
                                                      "COLORTERM",
                                                      "DISPLAY",
                                                      "XAUTHORITY",
                                                      "WAYLAND_DISPLAY",
                                                      "WINDOWID",
                                                      "SHLVL",
                                                      "_",
                                                      "OLDPWD",
                                                      "TTY",
                                                      "TMUX",
                                                      "TMUX_PANE",
                                                      "STY",
                                                      "KRB5CCNAME",
                                                      "INVOCATION_ID",
                                                      "JOURNAL_STREAM",
                                                      "SUDO_COMMAND",
                                                      "XDG_RUNTIME_DIR",
                                                      "NOTIFY_SOCKET"};
constexpr std::array<std::string_view, 5> kHostPrefixes{"SSH_", "XDG_SESSION_", "DBUS_SESSION_", "GPG_", "LC_TERMINAL"};
constexpr std::array<std::string_view, 4> kSlurmPrefixes{"SLURM_", "SLURMD_", "SRUN_", "SALLOC_"};

bool begins_with_any(std::string_view name, std::span<const std::string_view> prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

[[noreturn]] void refuse(ErrorCode code, std::string cause, std::string hint = {},
                         const std::string& attempted = kReadingSettings) {
  throw Error{{.code = code, .attempted = attempted, .cause = std::move(cause), .hint = std::move(hint)}};
}

/// Appends what has come. Throws at the end of the stream and at @p deadline.
void read_more(int fd, std::string& bytes, Deadline deadline, const std::string& attempted) {
  char buffer[16'384];
  for (;;) {
    if (!base::wait_for(fd, POLLIN, deadline)) refuse(ErrorCode::timeout, "it did not arrive", {}, attempted);
    const ssize_t size = ::read(fd, buffer, sizeof buffer);
    if (size < 0 && errno == EINTR) continue;
    if (size < 0) throw base::system_error(attempted, errno);
    if (size == 0) refuse(ErrorCode::unavailable, "it has ended early", "is the frontend's ddprun gone?", attempted);
    return void(bytes.append(buffer, static_cast<std::size_t>(size)));
  }
}

std::string working_directory(const base::Environment& environment) {
  // A path without the links that the user took may not exist elsewhere (automounted folders).
  const std::string logical = environment.raw("PWD").value_or("");
  struct stat named {};
  struct stat real {};
  if (logical.starts_with('/') && ::stat(logical.c_str(), &named) == 0 && ::stat(".", &real) == 0 &&
      named.st_dev == real.st_dev && named.st_ino == real.st_ino)
    return logical;
  char path[PATH_MAX];
  if (::getcwd(path, sizeof path) == nullptr)
    throw base::system_error("finding the folder that ddprun works in", errno, "change to one that exists");
  return path;
}

/// The frontend, or the ssh to it, is gone before this agent has reached it: there is nobody to tell. SIGIO ends a
/// process that does not handle it.
void end_with_standard_input() {
  ::signal(SIGIO, SIG_DFL);
  ::fcntl(STDIN_FILENO, F_SETOWN, ::getpid());
  ::fcntl(STDIN_FILENO, F_SETFL, ::fcntl(STDIN_FILENO, F_GETFL) | O_ASYNC);
  if (base::wait_for(STDIN_FILENO, POLLIN, Deadline::after(std::chrono::seconds(0))))
    refuse(ErrorCode::unavailable, "it has ended early", "is the frontend's ddprun gone?");
}

}  // namespace

std::string encode(const AgentSettings& settings, std::string_view version) {
  const std::string body = base::to_text(base::encode(settings));
  return fmt::format("{} {} {}\n", kMagic, version, body.size()) + body;
}

bool belongs_to_host(std::string_view name) {
  return std::find(kHostNames.begin(), kHostNames.end(), name) != kHostNames.end() ||
         begins_with_any(name, kHostPrefixes);
}

bool is_slurms(std::string_view name) { return begins_with_any(name, kSlurmPrefixes); }

EnvironmentMap portable_environment(const base::Environment& environment) {
  EnvironmentMap kept = without_task_identity(environment.variables());
  std::erase_if(kept,
                [](const auto& variable) { return belongs_to_host(variable.first) || is_slurms(variable.first); });
  return kept;
}

AgentSettings settings_for_agents(std::string point, std::vector<std::string> arguments,
                                  const base::Environment& environment) {
  const mode_t mask = ::umask(0);
  ::umask(mask);
  return {.point = std::move(point),
          .file_mask = mask,
          .directory = working_directory(environment),
          .arguments = std::move(arguments),
          .environment = portable_environment(environment)};
}

AgentSettings read_agent_settings(int fd, std::string_view version, Deadline deadline, const std::string& attempted) {
  std::string bytes;
  std::size_t end = std::string::npos;
  while ((end = bytes.find('\n')) == std::string::npos) {
    if (bytes.size() > kMostFirstLineBytes) refuse(ErrorCode::protocol, "it is not from a ddprun", {}, attempted);
    read_more(fd, bytes, deadline, attempted);
  }
  const std::string first = bytes.substr(0, end);
  const auto blank = first.find(' ');
  const auto last = first.rfind(' ');
  if (first.substr(0, blank) != kMagic || last == blank)
    refuse(ErrorCode::protocol, "it is not from a ddprun",
           attempted == kReadingSettings ? "this option is for ddprun's own use" : "", attempted);
  const std::string theirs = first.substr(blank + 1, last - blank - 1);
  if (theirs != version)
    refuse(
        ErrorCode::conflict,
        fmt::format("the frontend is version {}, but ddprun on {} is version {}", theirs, base::host_name(), version),
        "install the same version on all hosts", attempted);
  std::size_t size = 0;
  const auto [parsed, status] = std::from_chars(first.data() + last + 1, first.data() + first.size(), size);
  if (status != std::errc{} || parsed != first.data() + first.size() || size > kMostBytes)
    refuse(ErrorCode::protocol, "its length is invalid", {}, attempted);
  bytes.erase(0, end + 1);
  while (bytes.size() < size) read_more(fd, bytes, deadline, attempted);
  if (bytes.size() > size) refuse(ErrorCode::protocol, "it is longer than stated", {}, attempted);
  return base::decode<AgentSettings>(base::to_bytes(bytes));
}

EnvironmentMap environment_of_agent(const AgentSettings& settings, const EnvironmentMap& own) {
  EnvironmentMap wanted = settings.environment;
  for (const auto& [name, value] : own) {
    if (belongs_to_host(name)) wanted.insert_or_assign(name, value);
  }
  struct stat facts {};
  if (const auto folder = wanted.find("TMPDIR");
      folder != wanted.end() && (::stat(folder->second.c_str(), &facts) != 0 || !S_ISDIR(facts.st_mode))) {
    wanted.erase(folder);
    if (const auto here = own.find("TMPDIR"); here != own.end()) wanted.insert(*here);
  }
  wanted.insert_or_assign("PWD", settings.directory);
  wanted.insert_or_assign(kAgentVariable, settings.point);
  return wanted;
}

void enter_folder(const AgentSettings& settings) {
  ::umask(settings.file_mask);
  if (::chdir(settings.directory.c_str()) != 0)
    throw base::system_error(fmt::format("entering the folder '{}' on {}", settings.directory, base::host_name()),
                             errno, "start ddprun in a folder that all hosts have");
}

void take_agent_settings(const AgentSettings& settings) {
  EnvironmentMap wanted = environment_of_agent(settings, base::Environment::process().variables());
  wanted.insert_or_assign(kAgentHostVariable,
                          fmt::format("{}:{}{}", settings.node, settings.ranks, settings.here ? ":here" : ""));
  ::clearenv();
  for (const auto& [name, value] : wanted) ::setenv(name.c_str(), value.c_str(), 1);
  enter_folder(settings);
  end_with_standard_input();
}

void leave_standard_input() {
  ::fcntl(STDIN_FILENO, F_SETFL, ::fcntl(STDIN_FILENO, F_GETFL) & ~O_ASYNC);
  const base::UniqueFd null_device{::open("/dev/null", O_RDONLY | O_CLOEXEC)};
  if (!null_device || ::dup2(null_device.get(), STDIN_FILENO) < 0) throw base::system_error("opening /dev/null", errno);
}

}  // namespace ddp::launcher
