#include "base/whole_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include <fmt/format.h>

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

/// A temporary file, removed unless renamed.
class TemporaryFile {
 public:
  TemporaryFile(const std::string& path, mode_t mode)
      : name_(fmt::format("{}.{}.tmp", path, ::getpid())),
        fd_(::open(name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode)) {
    if (!fd_) {
      const int number = errno;
      throw system_error(attempt(path), number,
                         number == ENOENT   ? "the folder must exist"
                         : number == EACCES ? "the folder must be writable, so that the file can be replaced"
                                            : "");
    }
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (!name_.empty()) ::unlink(name_.c_str());
  }

  void write(std::string_view text) {
    int number = write_all(fd_.get(), text);
    // Some file systems report a full disk only here.
    if (number == 0 && ::fsync(fd_.get()) != 0 && errno != EINVAL) number = errno;
    if (number == 0 && ::close(fd_.release()) != 0) number = errno;
    if (number != 0) throw system_error(attempt(name_), number);
  }

  void rename_to(const std::string& path) {
    if (::rename(name_.c_str(), path.c_str()) != 0) {
      throw system_error(fmt::format("renaming '{}' to '{}'", name_, path), errno);
    }
    name_.clear();
  }

  void set_mode(mode_t mode) {
    if (::fchmod(fd_.get(), mode) != 0) throw system_error(fmt::format("setting the mode of '{}'", name_), errno);
  }

 private:
  std::string name_;
  UniqueFd fd_;
};

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
  TemporaryFile file{target, 0666};  // less the umask
  if (exists) file.set_mode(facts.st_mode & 07777);
  file.write(text);
  file.rename_to(target);
}

}  // namespace ddp::base
