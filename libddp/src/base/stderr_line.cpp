#include "base/stderr_line.hpp"

#include <sys/uio.h>
#include <unistd.h>

namespace ddp::base {

void write_stderr_line(std::string_view line) noexcept {
  char newline = '\n';
  const iovec parts[] = {{.iov_base = const_cast<char*>(line.data()), .iov_len = line.size()},
                         {.iov_base = &newline, .iov_len = 1}};
  [[maybe_unused]] const ssize_t written = ::writev(STDERR_FILENO, parts, 2);
}

}  // namespace ddp::base
