#include "srun_side/ddp_step_client.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <string_view>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/errors.hpp"
#include "base/socket.hpp"

namespace ddp::srun_plugin {
namespace {

// For a program that should end because its input has.
constexpr std::chrono::seconds kEndLimit{1};

Error lost(const std::string& path, const std::string& doing, std::string cause) {
  return Error{
      {.code = ErrorCode::peer_lost, .attempted = fmt::format("{} {}", doing, path), .cause = std::move(cause)}};
}

struct Pipe {
  base::UniqueFd read;
  base::UniqueFd write;
};

Pipe make_pipe() {
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw base::system_error("starting ddp-step (pipe)", errno);
  return {.read = base::UniqueFd{ends[0]}, .write = base::UniqueFd{ends[1]}};
}

/// posix_spawn(3)'s argument lists want pointers to characters that it does not change.
std::vector<char*> pointers(std::span<const std::string> texts) {
  std::vector<char*> list;
  for (const std::string& text : texts) list.push_back(const_cast<char*>(text.c_str()));
  list.push_back(nullptr);
  return list;
}

class SpawnPlan {
 public:
  SpawnPlan(int input, int output, int inherited) {
    ::posix_spawn_file_actions_init(&actions_);
    ::posix_spawnattr_init(&attributes_);
    ::posix_spawn_file_actions_adddup2(&actions_, input, STDIN_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions_, output, STDOUT_FILENO);
    // srun's sockets must not live on in it.
    if (inherited >= 0) ::posix_spawn_file_actions_adddup2(&actions_, inherited, DdpStepClient::kInheritedFd);
    ::posix_spawn_file_actions_addclosefrom_np(&actions_,
                                               inherited >= 0 ? DdpStepClient::kInheritedFd + 1 : STDERR_FILENO + 1);
    sigset_t none;
    sigset_t all;
    ::sigemptyset(&none);
    ::sigfillset(&all);
    ::posix_spawnattr_setsigmask(&attributes_, &none);
    ::posix_spawnattr_setsigdefault(&attributes_, &all);
    ::posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID);
  }
  SpawnPlan& operator=(SpawnPlan&&) = delete;
  ~SpawnPlan() {
    ::posix_spawn_file_actions_destroy(&actions_);
    ::posix_spawnattr_destroy(&attributes_);
  }
  const posix_spawn_file_actions_t* actions() const { return &actions_; }
  const posix_spawnattr_t* attributes() const { return &attributes_; }

 private:
  posix_spawn_file_actions_t actions_{};
  posix_spawnattr_t attributes_{};
};

/// Descriptors 0 to 2 may be closed in a host process; a pipe there would be overwritten by the other.
void move_above_standard(base::UniqueFd& fd) {
  if (fd.get() > STDERR_FILENO) return;
  const int moved = ::fcntl(fd.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  if (moved < 0) throw base::system_error("starting ddp-step (fcntl)", errno);
  fd.reset(moved);
}

/// Where the program belongs to which this @p plugin was installed, without the "..", for messages.
std::string beside_plugin(std::string_view plugin) {
  std::string_view folder = plugin.substr(0, plugin.rfind('/'));
  std::string_view way = DDP_STEP_FROM_PLUGIN;
  for (; way.starts_with("../"); way.remove_prefix(3)) folder = folder.substr(0, folder.rfind('/'));
  return fmt::format("{}/{}", folder, way);
}

}  // namespace

std::string find_ddp_step(const std::string& given) {
  if (!given.empty()) return given;
  std::string beside;
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&find_ddp_step), &info) != 0 && info.dli_fname != nullptr) {
    const std::unique_ptr<char, decltype(&std::free)> real(::realpath(info.dli_fname, nullptr), &std::free);
    if (real != nullptr) {
      beside = beside_plugin(real.get());
      if (::access(beside.c_str(), X_OK) == 0) return beside;
    }
  }
  // a plugin that was copied elsewhere
  return beside.empty() || ::access(DDP_STEP_INSTALLED, X_OK) == 0 ? DDP_STEP_INSTALLED : beside;
}

DdpStepClient::DdpStepClient(const std::string& path, std::span<const std::string> arguments,
                             std::span<const std::string> environment, int inherited)
    : path_(path) {
  Pipe input = make_pipe();
  Pipe output = make_pipe();
  for (base::UniqueFd* fd : {&input.read, &input.write, &output.read, &output.write}) move_above_standard(*fd);
  std::vector<std::string> argument_texts{path};
  argument_texts.insert(argument_texts.end(), arguments.begin(), arguments.end());
  const SpawnPlan plan(input.read.get(), output.write.get(), inherited);
  pid_t pid = -1;
  const int error = ::posix_spawn(&pid, path.c_str(), plan.actions(), plan.attributes(),
                                  pointers(argument_texts).data(), pointers(environment).data());
  if (error != 0) {
    throw base::system_error(fmt::format("starting {}", path), error,
                             "is it installed on this host? plugstack.conf may say helper=PATH");
  }
  process_ = base::ChildProcess{pid};
  input_ = std::move(input.write);
  output_ = std::move(output.read);
  for (const int fd : {input_.get(), output_.get()}) ::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) | O_NONBLOCK);
}

void DdpStepClient::send(std::span<const std::byte> data, Deadline deadline) {
  // A program that has ended must not kill srun with SIGPIPE.
  sigset_t pipe_signal;
  sigset_t before;
  ::sigemptyset(&pipe_signal);
  ::sigaddset(&pipe_signal, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
  int error = 0;
  while (!data.empty() && error == 0) {
    const ssize_t count = ::write(input_.get(), data.data(), data.size());
    if (count > 0) {
      data = data.subspan(static_cast<std::size_t>(count));
    } else if (errno == EAGAIN) {
      if (!base::wait_for(input_.get(), POLLOUT, deadline)) error = ETIMEDOUT;
    } else if (errno != EINTR) {
      error = errno;
    }
  }
  if (error == EPIPE && ::sigismember(&before, SIGPIPE) == 0) {
    const timespec now{};
    ::sigtimedwait(&pipe_signal, nullptr, &now);
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (error == ETIMEDOUT) throw base::system_error(fmt::format("writing to {}", path_), error, {}, ErrorCode::timeout);
  if (error == EPIPE) {
    const int status = finish(Deadline::after(kEndLimit));
    throw lost(path_, "writing to", fmt::format("it ended with exit status {} [EPIPE (32)]", status));
  }
  if (error != 0) throw base::system_error(fmt::format("writing to {}", path_), error, {}, ErrorCode::peer_lost);
}

bool DdpStepClient::read_some(Deadline deadline, Bytes& bytes, std::size_t most) {
  std::array<std::byte, 4096> block{};
  while (!deadline.expired() && base::wait_for(output_.get(), POLLIN, deadline)) {
    const ssize_t count = ::read(output_.get(), block.data(), std::min(block.size(), most));
    if (count > 0) {
      bytes.insert(bytes.end(), block.begin(), block.begin() + count);
      return true;
    }
    if (count == 0) return false;
    if (errno != EINTR && errno != EAGAIN) throw base::system_error(fmt::format("reading from {}", path_), errno);
  }
  process_.kill();
  finish(Deadline::after(std::chrono::seconds(1)));
  throw base::system_error(fmt::format("waiting for an answer of {}", path_), ETIMEDOUT, {}, ErrorCode::timeout);
}

std::string DdpStepClient::read_line(Deadline deadline) {
  constexpr std::size_t kLongest = 4096;
  Bytes bytes;
  while (bytes.empty() || bytes.back() != std::byte{'\n'}) {
    if (bytes.size() > kLongest || !read_some(deadline, bytes, 1)) {
      const int status = finish(Deadline::after(std::chrono::seconds(1)));
      throw lost(path_, "starting", fmt::format("it ended with exit status {} before it was ready", status));
    }
  }
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size() - 1};
}

Bytes DdpStepClient::read_all(Deadline deadline) {
  Bytes bytes;
  while (read_some(deadline, bytes, SIZE_MAX)) {
  }
  return bytes;
}

int DdpStepClient::finish(Deadline deadline) noexcept {
  input_.reset();
  base::ChildProcess process = std::move(process_);
  if (!process.wait(deadline)) process.kill();
  const int status = process.end().value_or(base::ProcessEnd{}).shell_status();
  if (status_ < 0) status_ = status;
  return status;
}

DdpStepClient& DdpStepClient::operator=(DdpStepClient&& other) noexcept {
  if (this == &other) return *this;
  finish(Deadline::after(kEndLimit));
  path_ = std::move(other.path_);
  status_ = other.status_;
  process_ = std::move(other.process_);
  input_ = std::move(other.input_);
  output_ = std::move(other.output_);
  return *this;
}

DdpStepClient::~DdpStepClient() { finish(Deadline::after(kEndLimit)); }

}  // namespace ddp::srun_plugin
