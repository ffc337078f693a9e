#include "base/stderr_line.hpp"

#include <poll.h>
#include <sys/uio.h>
#include <unistd.h>

namespace ddp::base {
namespace {

// A reader that has stopped to read costs every line this long.
constexpr int kPatienceMs = 250;

}  // namespace

void write_stderr_line(std::string_view line) noexcept {
  pollfd entry{.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  if (::poll(&entry, 1, kPatienceMs) == 0) return;
  char newline = '\n';
  const iovec parts[] = {{.iov_base = const_cast<char*>(line.data()), .iov_len = line.size()},
                         {.iov_base = &newline, .iov_len = 1}};
  [[maybe_unused]] const ssize_t written = ::writev(STDERR_FILENO, parts, 2);
}

}  // namespace ddp::base
