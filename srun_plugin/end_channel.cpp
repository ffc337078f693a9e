#include "end_channel.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <type_traits>

#include <ddp/deadline.hpp>

#include "base/socket.hpp"
#include "base/system_error.hpp"

namespace ddp::srun_plugin {

static_assert(std::is_trivially_copyable_v<TaskEnd>);

EndChannel::EndChannel() : owner_(::getpid()) {
  std::array<int, 2> ends{};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends.data()) != 0)
    throw base::system_error("making a channel for the ends of tasks (socketpair)", errno);
  own_.reset(ends[0]);
  witness_.reset(ends[1]);
}

EndChannel::~EndChannel() {
  if (::getpid() == owner_) return;
  own_.release();
  witness_.release();
}

int EndChannel::witness_end() const noexcept { return ::getppid() == owner_ ? witness_.get() : -1; }

void EndChannel::tell(const TaskEnd& end) noexcept {
  if (!own_ || ::getpid() != owner_) return;
  witness_.reset();  // so that a witness that has ended is noticed
  if (::send(own_.get(), &end, sizeof end, MSG_DONTWAIT | MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof end)) {
    own_.reset();
    return;
  }
  if (!waits_) return;
  try {
    waits_ = base::wait_for(own_.get(), POLLIN, Deadline::after(kPatience));
  } catch (...) {
    waits_ = false;
  }
  char confirmation = 0;
  if (waits_ && ::recv(own_.get(), &confirmation, sizeof confirmation, MSG_DONTWAIT) <= 0) own_.reset();
}

std::optional<TaskEnd> take_end(int fd, bool& ended) {
  TaskEnd end;
  const ssize_t count = ::recv(fd, &end, sizeof end, MSG_DONTWAIT);
  if (count == static_cast<ssize_t>(sizeof end)) return end;
  ended = count >= 0 || (errno != EAGAIN && errno != EINTR);
  return std::nullopt;
}

void confirm_end(int fd) noexcept {
  const char confirmation = 1;
  [[maybe_unused]] const ssize_t count = ::send(fd, &confirmation, sizeof confirmation, MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace ddp::srun_plugin
