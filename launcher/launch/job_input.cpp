#include "launch/job_input.hpp"

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
#include <span>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/errors.hpp"
#include "base/library_thread.hpp"
#include "base/log.hpp"
#include "base/socket.hpp"

namespace ddp::launcher {
namespace {

constexpr std::size_t kPieceBytes = std::size_t{64} << 10U;
// Until the process may be in a terminal's foreground again.
constexpr std::chrono::milliseconds kInputPause{500};

}  // namespace

JobInput::JobInput(stream::EventLoop& loop, int fd, Send send) : loop_(loop), source_(fd), send_(std::move(send)) {}

JobInput::~JobInput() { watch(false); }

void JobInput::begin(bool anew) {
  if (anew) {
    out_ = 0;
    begun_ = ended_ = false;
  }
  if (!std::exchange(begun_, true)) look();
}

void JobInput::taken(std::int64_t bytes) {
  const auto size = std::min(static_cast<std::size_t>(std::max<std::int64_t>(bytes, 0)), out_);
  source_.take(size);
  out_ -= size;
  if (size > 0 && out_ == 0) look();
}

void JobInput::time_passed() {
  if (!look_at_ || !look_at_->expired()) return;
  look_at_.reset();
  look();
}

/// Sends what there is, or waits for it.
void JobInput::look() {
  if (ended_ || out_ > 0) return watch(false);
  std::optional<Bytes> piece;
  try {
    piece = source_.peek(kPieceBytes);
  } catch (const Error& error) {
    base::write_stderr_line(fmt::format("ddprun: {}", error.what()));
    piece.emplace();  // rank 0 shall not wait for more
  }
  if (!piece) {
    // Pipes and sockets tell when there is more; a terminal would tell all the time that we may not read.
    watch(source_.tells());
    if (!source_.tells()) look_at_ = Deadline::after(kInputPause);
    return;
  }
  out_ = piece->size();
  ended_ = piece->empty();
  watch(false);
  send_({.data = *std::move(piece), .end = ended_});
}

void JobInput::watch(bool wanted) {
  if (wanted == watched_) return;
  watched_ = wanted;
  wanted ? loop_.watch(source_.fd(), [this] { look(); }) : loop_.forget(source_.fd());
}

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

namespace {

// Until the process may be in the foreground again.
constexpr std::chrono::milliseconds kPause{500};

/// Waits for a program that reads slowly; SIGPIPE is blocked. @return false once nobody reads any more
bool write_all(int fd, std::span<const char> text) {
  while (!text.empty()) {
    const ssize_t size = ::write(fd, text.data(), text.size());
    if (size < 0 && errno != EINTR) return false;
    if (size > 0) text = text.subspan(static_cast<std::size_t>(size));
  }
  return true;
}

void copy_input(const base::UniqueFd& pipe) {
  std::array<char, 4096> line;
  for (;;) {
    const ssize_t size = ::read(STDIN_FILENO, line.data(), line.size());
    if (size == 0 || (size < 0 && errno != EINTR && errno != EIO)) return;
    if (size > 0 && !write_all(pipe.get(), std::span{line}.first(static_cast<std::size_t>(size)))) return;
    // In the background, with SIGTTIN blocked: EIO.
    if (size < 0 && errno == EIO) std::this_thread::sleep_for(kPause);
  }
}

}  // namespace

base::UniqueFd relay_input() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) throw base::system_error("making a pipe for standard input", errno);
  base::UniqueFd reading{ends[0]};
  base::UniqueFd writing{ends[1]};
  // The thread ends with the process.
  base::start_thread([pipe = std::move(writing)] { copy_input(pipe); }).detach();
  return reading;
}

}  // namespace ddp::launcher
