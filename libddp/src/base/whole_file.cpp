#include "base/whole_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <memory>

#include <fmt/format.h>

#include "base/new_file.hpp"
#include "base/system_error.hpp"
#include "base/unique_fd.hpp"

namespace ddp::base {
namespace {

std::string attempt(const std::string& path) { return fmt::format("writing '{}'", path); }

/// The end of a chain of symbolic links; @p path itself if nothing exists there.
std::string resolve_links(const std::string& path) {
  const std::unique_ptr<char, decltype(&std::free)> resolved{::realpath(path.c_str(), nullptr), &std::free};
  return resolved ? resolved.get() : path;
}

void write_directly(const std::string& path, std::string_view text) {
  const UniqueFd fd{::open(path.c_str(), O_WRONLY | O_CLOEXEC)};
  if (!fd) throw system_error(attempt(path), errno);
  if (const int number = write_all(fd.get(), text); number != 0) throw system_error(attempt(path), number);
}

}  // namespace

int write_all(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

void write_file(const std::string& path, std::string_view text) {
  struct stat facts {};
  const bool exists = ::stat(path.c_str(), &facts) == 0;
  if (exists && S_ISDIR(facts.st_mode)) throw system_error(attempt(path), EISDIR, "give the name of a file");
  if (exists && !S_ISREG(facts.st_mode)) return write_directly(path, text);
  const std::string target = resolve_links(path);
  NewFile file{target, 0666};
  if (exists) file.set_mode(facts.st_mode & 07777);
  file.write(text);
  file.commit();
}

std::optional<std::string> read_file(const std::string& path) {
  std::string text;
  const UniqueFd fd{::open(path.c_str(), O_RDONLY | O_CLOEXEC)};
  if (!fd) return std::nullopt;
  std::array<char, 16384> block;
  for (;;) {
    const ssize_t count = ::read(fd.get(), block.data(), block.size());
    if (count == 0) return text;
    if (count > 0) {
      text.append(block.data(), static_cast<std::size_t>(count));
    } else if (errno != EINTR) {
      return std::nullopt;
    }
  }
}

}  // namespace ddp::base
