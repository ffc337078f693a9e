#include "end_channel.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include <ddp/deadline.hpp>

#include "base/socket.hpp"
#include "base/system_error.hpp"

namespace ddp::srun_plugin {

static_assert(std::is_trivially_copyable_v<TaskStart> && std::is_trivially_copyable_v<TaskEnd>);
static_assert(std::has_unique_object_representations_v<TaskEnd>);  // without padding, which would be sent as it is
static_assert(sizeof(TaskStart) != sizeof(TaskEnd));

EndChannel::EndChannel(std::uint32_t tasks) : owner_(::getpid()), left_(tasks) {
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

void EndChannel::tell(const TaskStart& start) const noexcept {
  if (::getppid() == owner_) ::send(own_.get(), &start, sizeof start, MSG_DONTWAIT | MSG_NOSIGNAL);
}

void EndChannel::tell(TaskEnd end) noexcept {
  if (!own_ || ::getpid() != owner_) return;
  witness_.reset();  // so that a witness that has ended is noticed
  if (left_ > 0) --left_;
  end.awaited = end.status != 0 || left_ == 0 ? 1 : 0;
  if (::send(own_.get(), &end, sizeof end, MSG_DONTWAIT | MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof end)) {
    own_.reset();
    return;
  }
  if (!waits_ || end.awaited == 0) return;
  try {
    waits_ = base::wait_for(own_.get(), POLLIN, Deadline::after(kPatience));
  } catch (...) {
    waits_ = false;
  }
  char confirmation = 0;
  if (waits_ && ::recv(own_.get(), &confirmation, sizeof confirmation, MSG_DONTWAIT) <= 0) own_.reset();
}

TaskNews take_news(int fd, bool& ended) {
  std::array<std::byte, sizeof(TaskEnd)> bytes{};
  const ssize_t count = ::recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (count == static_cast<ssize_t>(sizeof(TaskEnd))) return std::bit_cast<TaskEnd>(bytes);
  if (count == static_cast<ssize_t>(sizeof(TaskStart))) {
    TaskStart start;
    std::memcpy(&start, bytes.data(), sizeof start);
    return start;
  }
  ended = count >= 0 || (errno != EAGAIN && errno != EINTR);
  return {};
}

void confirm_end(int fd) noexcept {
  const char confirmation = 1;
  [[maybe_unused]] const ssize_t count = ::send(fd, &confirmation, sizeof confirmation, MSG_DONTWAIT | MSG_NOSIGNAL);
}

}  // namespace ddp::srun_plugin
