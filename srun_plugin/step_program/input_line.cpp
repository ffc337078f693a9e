#include "step_program/input_line.hpp"

#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>

#include <ddp/deadline.hpp>

#include "base/socket.hpp"

namespace ddp::srun_plugin {
namespace {

// It is written as soon as this program has started.
constexpr std::chrono::seconds kLimit{10};
constexpr std::size_t kLongest = std::size_t{256} * 1024;  // with a list of nodes

}  // namespace

std::optional<std::string> read_input_line() {
  const Deadline deadline = Deadline::after(kLimit);
  std::string line;
  while (line.size() < kLongest && base::wait_for(STDIN_FILENO, POLLIN, deadline)) {
    char letter = 0;
    const ssize_t count = ::read(STDIN_FILENO, &letter, 1);
    if (count == 0 || (count < 0 && errno != EINTR && errno != EAGAIN)) return std::nullopt;
    if (count < 0) continue;
    if (letter == '\n') return line;
    line += letter;
  }
  return std::nullopt;
}

}  // namespace ddp::srun_plugin
