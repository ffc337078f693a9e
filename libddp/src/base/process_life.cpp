#include "base/process_life.hpp"

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>

#include "base/unique_fd.hpp"

namespace ddp::base {

ProcessNumber own_process() {
  ProcessNumber own{.pid = ::getpid(), .space = 0};
  std::array<char, 16> name{};
  const ssize_t size = ::readlink("/proc/self", name.data(), name.size());
  struct stat status {};
  if (size > 0 && std::string(name.data(), static_cast<std::size_t>(size)) == std::to_string(own.pid) &&
      ::stat("/proc/self/ns/pid", &status) == 0) {
    own.space = status.st_ino;
  }
  return own;
}

ProcessLife life_of(const ProcessNumber& process) {
  if (process.space == 0 || process.space != own_process().space) return ProcessLife::unknown;
  const UniqueFd file{::open(("/proc/" + std::to_string(process.pid) + "/stat").c_str(), O_RDONLY | O_CLOEXEC)};
  if (!file) {  // where /proc hides others' processes, it has no file of a living one either
    return ::kill(process.pid, 0) != 0 && errno == ESRCH ? ProcessLife::gone : ProcessLife::unknown;
  }
  std::array<char, 512> bytes{};
  const ssize_t size = ::read(file.get(), bytes.data(), bytes.size());
  if (size <= 0) return errno == ESRCH ? ProcessLife::gone : ProcessLife::unknown;
  const std::string text(bytes.data(), static_cast<std::size_t>(size));
  const auto name_end = text.rfind(')');  // the name may have any character
  if (name_end == std::string::npos || name_end + 2 >= text.size()) return ProcessLife::unknown;
  switch (text[name_end + 2]) {
    case 'T':
    case 't': return ProcessLife::stopped;
    case 'X':
    case 'x':
    case 'Z': return ProcessLife::gone;
    default: return ProcessLife::runs;
  }
}

}  // namespace ddp::base
