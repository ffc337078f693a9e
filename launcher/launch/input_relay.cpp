#include "launch/input_relay.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <span>
#include <thread>
#include <utility>

#include "base/library_thread.hpp"
#include "base/system_error.hpp"

namespace ddp::launcher {
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
