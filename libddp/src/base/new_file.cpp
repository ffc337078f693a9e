#include "base/new_file.hpp"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <random>
#include <utility>

#include <fmt/format.h>

#include "base/system_error.hpp"
#include "base/whole_file.hpp"

namespace ddp::base {
namespace {

Error writing_failed(const std::string& attempted, int number) {
  return system_error(attempted, number,
                      number == ENOSPC   ? "free space on its file system"
                      : number == EDQUOT ? "the quota of its user, group or project is used up"
                      : number == EFBIG  ? "raise the limit of the sizes of files (ulimit -f)"
                                         : "");
}

/// Beside @p path, with a name that no earlier process can have left: "<path>.<process>.<random>.tmp".
std::string temporary_name(const std::string& path) {
  const std::string end = fmt::format(".{}.{:08x}.tmp", ::getpid(), std::random_device{}());
  const auto slash = path.rfind('/');
  const std::size_t at = slash == std::string::npos ? 0 : slash + 1;
  const std::size_t kept = std::min(path.size() - at, NAME_MAX - end.size());  // the longest name is no problem
  return path.substr(0, at + kept) + end;
}

}  // namespace

NewFile::NewFile(std::string path, mode_t mode)
    : attempted_(fmt::format("writing '{}'", path)),
      folder_(AT_FDCWD),
      path_(std::move(path)),
      name_(temporary_name(path_)) {
  open(mode);
}

NewFile::NewFile(std::string attempted, const FilePlace& place, mode_t mode)
    : attempted_(std::move(attempted)), folder_(place.folder.get()), path_(place.name), name_(temporary_name(path_)) {
  open(mode);
}

void NewFile::open(mode_t mode) {
  // the place's own name first, which may be too long
  struct stat found {};
  if (::fstatat(folder_, path_.c_str(), &found, AT_SYMLINK_NOFOLLOW) == 0 || errno == ENOENT) {
    fd_.reset(::openat(folder_, name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
  }
  if (fd_) return;
  const int number = errno;
  name_.clear();
  throw system_error(attempted_, number,
                     number == ENOENT   ? "the folder must exist"
                     : number == EACCES ? "the folder must be writable, so that the file can be replaced"
                                        : "");
}

NewFile::~NewFile() {
  if (!name_.empty()) ::unlinkat(folder_, name_.c_str(), 0);
}

void NewFile::set_mode(mode_t mode) {
  if (::fchmod(fd_.get(), mode) != 0) throw system_error(attempted_, errno);
}

void NewFile::write(std::string_view bytes) {
  if (const int number = write_all(fd_.get(), bytes); number != 0) throw writing_failed(attempted_, number);
}

void NewFile::commit() {
  // Some file systems report a full disk only here.
  int number = ::fsync(fd_.get()) != 0 && errno != EINVAL ? errno : 0;
  if (number == 0 && ::close(fd_.release()) != 0) number = errno;
  if (number != 0) throw writing_failed(attempted_, number);
  if (::renameat(folder_, name_.c_str(), folder_, path_.c_str()) != 0) {
    throw system_error(fmt::format("{} (renaming '{}')", attempted_, name_), errno);
  }
  name_.clear();
}

}  // namespace ddp::base
