#include "workers/warm_workers.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/errors.hpp"
#include "base/imitated_launchers.hpp"
#include "base/log.hpp"
#include "base/slurm_step.hpp"
#include "topology/network/user_interfaces.hpp"

namespace ddp::launcher {

extern const char* const kWarmInterpreter;  // warm_interpreter.py

namespace {

constexpr std::chrono::seconds kExecuteLimit{60};
/// Receives warm_interpreter.py, so that ps shows a short line. 1 and 5: AF_UNIX and SOCK_SEQPACKET. Before anything is
/// imported, the working folder leaves sys.path: a script's interpreter does not look there, and another user may fill
/// it.
constexpr const char* kReceive =
    "import sys; first = sys.path.pop(0) if sys.path[:1] == [''] else None; import socket; "
    "exec(compile(socket.fromfd(0, 1, 5).recv(1 << 20), '<ddprun>', 'exec'), "
    "{'__name__': '<ddprun>', 'FIRST_FOLDER': first})";
constexpr std::size_t kMostReportBytes = 1U << 16U;

/// What is different, for the log; empty: nothing.
std::string difference(const WarmRank& rank, const SpawnRequest& request, const EnvironmentMap& environment) {
  if (rank.request.path != request.path || rank.request.arguments != request.arguments) return "the command differs";
  if (rank.request.binding != request.binding) return "its cores differ";
  const EnvironmentMap variables = without_late_variables(environment);
  if (variables == rank.variables) return {};
  for (const auto& [name, value] : variables) {
    const auto found = rank.variables.find(name);
    if (found == rank.variables.end() || found->second != value) return name + " differs";
  }
  return "a variable is not set any more";
}

/// The late variables as /proc/PID/environ has them, in memory. The others stay as they are: what starts the
/// interpreter, or a module, may have changed some.
base::UniqueFd variables_file(const EnvironmentMap& environment) {
  std::string text;
  for (const auto& [name, value] : environment) {
    if (is_late_variable(name)) text.append(name).append("=").append(value).push_back('\0');
  }
  base::UniqueFd file{::memfd_create("ddprun-variables", MFD_CLOEXEC)};
  std::size_t written = 0;
  while (file && written < text.size()) {
    const ssize_t size = ::write(file.get(), text.data() + written, text.size() - written);
    if (size <= 0) return {};
    written += static_cast<std::size_t>(size);
  }
  return file;
}

/// @return whether the process can still receive it
bool send_files(int channel, const std::array<int, 4>& files) {
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof files)> control{};
  char byte = 0;
  iovec data{.iov_base = &byte, .iov_len = 1};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof files);
  std::memcpy(CMSG_DATA(header), files.data(), sizeof files);
  return ::sendmsg(channel, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == 1;
}

}  // namespace

bool is_late_variable(std::string_view name) {
  static const auto kHorovod = base::horovod_variables({}, {}, {});
  // The interface of a job's traffic: read when a process group is made, and another one once there are other nodes.
  static constexpr std::array kInterface{"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"};
  return is_task_identity(name) || name.starts_with("PMIX_") || name == "DDP_GENERATION" ||
         std::find(kInterface.begin(), kInterface.end(), name) != kInterface.end() ||
         name == base::kPlacedSettingsVariable || name == topology::kInterfaceReasonVariable ||
         std::any_of(kHorovod.begin(), kHorovod.end(), [&](const auto& each) { return each.first == name; });
}

EnvironmentMap without_late_variables(const EnvironmentMap& environment) {
  EnvironmentMap kept;
  for (const auto& [name, value] : environment) {
    if (!is_late_variable(name)) kept.emplace(name, value);
  }
  return kept;
}

WarmWorkers::WarmWorkers(std::string modules, std::vector<WarmRank> ranks, Events events)
    : modules_(std::move(modules)), events_(std::move(events)) {
  for (WarmRank& rank : ranks) ranks_.push_back({.rank = std::move(rank)});
}

WarmWorkers::~WarmWorkers() {
  for (Interpreter& each : ranks_) each.process.signal(SIGKILL);  // all before the first is waited for
}

void WarmWorkers::advance() {
  if (importing_) read_report(ranks_[started_ - 1]);
  if (importing_ || started_ == ranks_.size()) return;
  ++started_;
  start(ranks_[started_ - 1]);
  importing_ = true;
}

void WarmWorkers::start(Interpreter& interpreter) {
  const std::string attempted = fmt::format("starting an interpreter for rank {}", interpreter.rank.request.rank);
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()) != 0)
    throw base::system_error(attempted, errno, "check the limit of open files (ulimit -n)");
  base::UniqueFd own{ends[0]};
  const base::UniqueFd other{ends[1]};
  const base::UniqueFd nowhere{::open("/dev/null", O_WRONLY | O_CLOEXEC)};
  if (!nowhere) throw base::system_error(attempted + " (opening /dev/null)", errno);

  const WarmRank& rank = interpreter.rank;
  const auto program = rank.request.arguments.begin() + static_cast<std::ptrdiff_t>(rank.position);
  SpawnRequest request = rank.request;
  request.arguments = {rank.request.arguments.begin(), program};
  for (const std::string& word : {std::string("-c"), std::string(kReceive), modules_, std::to_string(rank.position)})
    request.arguments.push_back(word);
  request.arguments.insert(request.arguments.end(), rank.request.arguments.begin(), rank.request.arguments.end());
  request.environment = environment_lines(rank.variables);
  request.standard_input = other.get();
  request.standard_output = request.standard_error = nowhere.get();
  interpreter.process =
      base::ChildProcess{start_worker(std::move(request)).confirm(Deadline::after(kExecuteLimit)).pid};
  if (::send(own.get(), kWarmInterpreter, std::strlen(kWarmInterpreter), MSG_NOSIGNAL) < 0)
    throw base::system_error(attempted, errno);
  interpreter.channel = std::move(own);
}

void WarmWorkers::read_report(Interpreter& interpreter) {
  std::string text(kMostReportBytes, '\0');
  const ssize_t size = ::recv(interpreter.channel.get(), text.data(), text.size(), MSG_DONTWAIT);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
  importing_ = false;
  if (size <= 0) return;  // it has ended
  text.resize(static_cast<std::size_t>(size));
  // "ready", and a line for each module that it has not.
  for (std::size_t line = text.find('\n'); started_ == 1 && line != std::string::npos;) {
    const std::size_t end = text.find('\n', line + 1);
    events_.not_imported(text.substr(line + 1, end == std::string::npos ? end : end - line - 1));
    line = end;
  }
  events_.ready(started_ - 1, interpreter.process.pid());
}

std::optional<StartingWorker> WarmWorkers::take(std::size_t local_rank, const SpawnRequest& request,
                                                const EnvironmentMap& environment) {
  const auto cold = [&](std::string_view why) {
    base::log(base::LogLevel::debug, "rank {} does not get the interpreter that was started for it: {}", request.rank,
              why);
    return std::nullopt;
  };
  if (importing_) read_report(ranks_[started_ - 1]);
  if (local_rank >= started_) return cold("none has been yet");
  if (importing_ && local_rank + 1 == started_) return cold("it still imports");
  Interpreter& interpreter = ranks_[local_rank];
  if (const std::string what = difference(interpreter.rank, request, environment); !what.empty()) return cold(what);
  if (!interpreter.process || interpreter.process.end()) return cold("it has ended");
  base::UniqueFd nothing;
  if (request.standard_input < 0) nothing.reset(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  const base::UniqueFd variables = variables_file(environment);
  if (!variables || (request.standard_input < 0 && !nothing)) return cold(base::errno_text(errno));
  const std::array<int, 4> files{nothing ? nothing.get() : request.standard_input, request.standard_output,
                                 request.standard_error, variables.get()};
  if (!send_files(interpreter.channel.get(), files)) return cold("it has closed its connection");
  interpreter.channel.reset();
  return StartingWorker{request, std::exchange(interpreter.process, {}), {}};
}

}  // namespace ddp::launcher
