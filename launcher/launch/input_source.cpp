#include "launch/input_source.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>

#include "base/library_thread.hpp"
#include "base/socket.hpp"
#include "base/system_error.hpp"

namespace ddp::launcher {
namespace {

constexpr const char* kReadingInput = "reading standard input for rank 0";

std::optional<Bytes> input_answer(Bytes bytes, ssize_t size) {
  if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return std::nullopt;
  if (size < 0) throw base::system_error(kReadingInput, errno);
  bytes.resize(static_cast<std::size_t>(size));
  return bytes;
}

}  // namespace

InputSource::InputSource(int fd) : fd_(fd), kind_(Kind::other) {
  struct stat facts {};
  if (::fstat(fd, &facts) != 0) throw base::system_error(kReadingInput, errno);
  if (S_ISREG(facts.st_mode) && ::lseek(fd, 0, SEEK_CUR) >= 0) kind_ = Kind::file;
  terminal_ = ::isatty(fd) == 1;
  if (S_ISSOCK(facts.st_mode)) kind_ = Kind::socket;
  if (!S_ISFIFO(facts.st_mode)) return;
  kind_ = Kind::pipe;
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) throw base::system_error(kReadingInput, errno);
  copy_out_.reset(ends[0]);
  copy_in_.reset(ends[1]);
}

std::optional<Bytes> InputSource::peek(std::size_t most) {
  Bytes bytes(most);
  switch (kind_) {
    case Kind::file: {
      const off_t at = ::lseek(fd_, 0, SEEK_CUR);
      if (at < 0) throw base::system_error(kReadingInput, errno);
      const ssize_t size = ::pread(fd_, bytes.data(), bytes.size(), at);
      return input_answer(std::move(bytes), size);
    }
    case Kind::socket: {
      const ssize_t size = ::recv(fd_, bytes.data(), bytes.size(), MSG_PEEK | MSG_DONTWAIT);
      return input_answer(std::move(bytes), size);
    }
    case Kind::pipe: {
      const ssize_t copied = ::tee(fd_, copy_in_.get(), most, SPLICE_F_NONBLOCK);
      if (copied <= 0) return input_answer({}, copied);
      const ssize_t size = ::read(copy_out_.get(), bytes.data(), static_cast<std::size_t>(copied));
      return input_answer(std::move(bytes), size);
    }
    case Kind::other: break;
  }
  refused_ = false;
  if (!base::wait_for(fd_, POLLIN, Deadline::after(std::chrono::seconds(0)))) return std::nullopt;
  const base::SignalsBlocked blocked;  // SIGTTIN would stop this process; with it blocked, there is EIO
  const ssize_t size = ::read(fd_, bytes.data(), bytes.size());
  refused_ = terminal_ && size < 0 && errno == EIO;
  return refused_ ? std::nullopt : input_answer(std::move(bytes), size);
}

void InputSource::take(std::size_t size) {
  if (kind_ == Kind::other) return;
  if (kind_ == Kind::file) {
    ::lseek(fd_, static_cast<off_t>(size), SEEK_CUR);
    return;
  }
  std::array<std::byte, 4096> dropped;
  while (size > 0) {
    int there = 0;  // what was peeked at, unless somebody else has read it
    if (::ioctl(fd_, FIONREAD, &there) != 0 || there == 0) return;
    const std::size_t part = std::min({size, dropped.size(), static_cast<std::size_t>(there)});
    const ssize_t count =
        kind_ == Kind::pipe ? ::read(fd_, dropped.data(), part) : ::recv(fd_, dropped.data(), part, MSG_DONTWAIT);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return;
    size -= static_cast<std::size_t>(count);
  }
}

bool input_is_empty() {
  struct stat own {};
  struct stat nothing {};
  return ::fstat(STDIN_FILENO, &own) != 0 ||
         (::stat("/dev/null", &nothing) == 0 && S_ISCHR(own.st_mode) && own.st_rdev == nothing.st_rdev);
}

}  // namespace ddp::launcher
