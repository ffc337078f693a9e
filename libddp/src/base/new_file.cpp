#include "base/new_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <utility>

#include <fmt/format.h>

#include "base/system_error.hpp"
#include "base/whole_file.hpp"

namespace ddp::base {
namespace {

Error writing_failed(const std::string& name, int number) {
  return system_error(fmt::format("writing '{}'", name), number,
                      number == ENOSPC   ? "free space on its file system"
                      : number == EDQUOT ? "the quota of its user, group or project is used up"
                      : number == EFBIG  ? "raise the limit of the sizes of files (ulimit -f)"
                                         : "");
}

}  // namespace

NewFile::NewFile(std::string path, mode_t mode)
    : path_(std::move(path)),
      name_(fmt::format("{}.{}.tmp", path_, ::getpid())),
      fd_(::open(name_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode)) {
  if (fd_) return;
  const int number = errno;
  throw system_error(fmt::format("writing '{}'", path_), number,
                     number == ENOENT   ? "the folder must exist"
                     : number == EACCES ? "the folder must be writable, so that the file can be replaced"
                                        : "");
}

NewFile::~NewFile() {
  if (!name_.empty()) ::unlink(name_.c_str());
}

void NewFile::set_mode(mode_t mode) {
  if (::fchmod(fd_.get(), mode) != 0) throw system_error(fmt::format("setting the mode of '{}'", name_), errno);
}

void NewFile::write(std::string_view bytes) {
  if (const int number = write_all(fd_.get(), bytes); number != 0) throw writing_failed(name_, number);
}

void NewFile::commit() {
  // Some file systems report a full disk only here.
  int number = ::fsync(fd_.get()) != 0 && errno != EINVAL ? errno : 0;
  if (number == 0 && ::close(fd_.release()) != 0) number = errno;
  if (number != 0) throw writing_failed(name_, number);
  if (::rename(name_.c_str(), path_.c_str()) != 0) {
    throw system_error(fmt::format("renaming '{}' to '{}'", name_, path_), errno);
  }
  name_.clear();
}

}  // namespace ddp::base
