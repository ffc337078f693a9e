// Writes files as a whole: beside their place first, then by rename(2).
#include "outcome/replaced_file.hpp"

#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <memory>
#include <string_view>

#include <fmt/format.h>

#include <ddp/deadline.hpp>

#include "base/system_error.hpp"
#include "base/unique_fd.hpp"

namespace ddp::launcher {
namespace {

constexpr mode_t kMode = 0666;  // less the umask
constexpr int kMostNames = 100;

/// A file that goes away unless it is kept.
class TemporaryFile {
 public:
  /// Throws Error(system).
  TemporaryFile(const std::string& attempted, const std::string& path) {
    const std::size_t slash = path.rfind('/');
    const std::string folder = slash == std::string::npos ? "" : path.substr(0, slash + 1);
    for (int i = 0; i < kMostNames && !fd_; ++i) {
      path_ = fmt::format("{}.ddprun.{}.{}.tmp", folder, ::getpid(), i);
      fd_.reset(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, kMode));
      if (!fd_ && errno != EEXIST) break;
    }
    if (!fd_) throw base::system_error(attempted, errno, "is its folder there, and may you write to it?");
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  ~TemporaryFile() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }

  int fd() const { return fd_.get(); }
  bool move_to(const std::string& path) {
    if (std::rename(path_.c_str(), path.c_str()) != 0) return false;
    path_.clear();
    return true;
  }

 private:
  base::UniqueFd fd_;
  std::string path_;
};

/// Where a path leads, and how it is written to.
struct Place {
  std::string path;  ///< links resolved, where it exists
  bool direct = false;
  mode_t mode = 0;  ///< of the file that is there; 0: none is
};

Place find_place(const std::string& attempted, const std::string& path) {
  if (path.empty()) throw base::system_error(attempted, ENOENT, "name a file");
  Place place{.path = path};
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    if (errno == ENOENT) return place;  // or its folder is not there, which shows when it is written
    throw base::system_error(attempted, errno);
  }
  if (S_ISDIR(status.st_mode)) throw base::system_error(attempted, EISDIR, "name a file in it");
  place.mode = status.st_mode & 07777U;
  // Standard output may be a file that already has the job's output in it.
  for (const std::string_view stream : {"/dev/fd/", "/dev/stdout", "/dev/stderr", "/proc/"}) {
    if (path.starts_with(stream)) place.direct = true;
  }
  if (!S_ISREG(status.st_mode)) place.direct = true;
  if (place.direct) return place;
  const std::unique_ptr<char, decltype(&::free)> resolved{::realpath(path.c_str(), nullptr), &::free};
  if (!resolved) throw base::system_error(attempted, errno);
  place.path = resolved.get();
  return place;
}

void write_all(const std::string& attempted, int fd, std::string_view text, Deadline deadline) {
  while (!text.empty()) {
    const ssize_t count = ::write(fd, text.data(), text.size());
    if (count >= 0) {
      text.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno == EAGAIN) {
      pollfd waiting{.fd = fd, .events = POLLOUT, .revents = 0};
      if (::poll(&waiting, 1, deadline.poll_timeout_ms()) == 0)
        throw base::system_error(attempted, ETIMEDOUT, "it has no reader");
    } else if (errno != EINTR) {
      throw base::system_error(attempted, errno);
    }
  }
}

}  // namespace

void check_replaceable(const std::string& attempted, const std::string& path) {
  const Place place = find_place(attempted, path);
  if (place.direct) {
    // Opening it would already tell the reader of a pipe that all is over.
    if (::access(path.c_str(), W_OK) != 0) throw base::system_error(attempted, errno);
    return;
  }
  const TemporaryFile trial{attempted, place.path};
}

void replace_file(const std::string& attempted, const std::string& path, const std::string& text,
                  std::chrono::milliseconds write_limit) {
  const Place place = find_place(attempted, path);
  const Deadline deadline = Deadline::after(write_limit);
  if (place.direct) {
    const base::UniqueFd fd{::open(path.c_str(), O_WRONLY | O_APPEND | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)};
    if (!fd) throw base::system_error(attempted, errno, errno == ENXIO ? "it has no reader" : "");
    write_all(attempted, fd.get(), text, deadline);
    return;
  }
  TemporaryFile file{attempted, place.path};
  write_all(attempted, file.fd(), text, deadline);
  if (place.mode != 0 && ::fchmod(file.fd(), place.mode) != 0) throw base::system_error(attempted, errno);
  // Full disks and quotas of network file systems show only now.
  if (::fsync(file.fd()) != 0 && errno != EINVAL) throw base::system_error(attempted, errno);
  if (!file.move_to(place.path)) throw base::system_error(attempted, errno);
}

}  // namespace ddp::launcher
