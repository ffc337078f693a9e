#include "base/files.hpp"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <exception>
#include <random>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/errors.hpp"
#include "base/host_name.hpp"
#include "base/log.hpp"

namespace ddp::base {
namespace {

constexpr mode_t kPrivateMode = 0600;

std::string attempt(const WholeFile& file) {
  return file.attempted.empty() ? fmt::format("writing '{}'", file.path) : file.attempted;
}

/// The file's place, or nothing to write directly: standard output may be a file that already has the job's output.
std::optional<FilePlace> place_of(const WholeFile& file, const std::string& attempted) {
  if (names_open_file(file.path)) return std::nullopt;
  FilePlace place = find_place(attempted, file.path, file.last);
  if (place.is_open_file) return std::nullopt;
  if (!place.there) return place;
  if (S_ISDIR(place.there->st_mode)) throw system_error(attempted, EISDIR, "give the name of a file");
  if (S_ISREG(place.there->st_mode)) return place;
  if (file.last == LastLink::refused) throw system_error(attempted, EEXIST, "it exists and is not a file");
  check_special_file(attempted, place, *place.there);
  return std::nullopt;
}

void write_directly(const WholeFile& file, const std::string& attempted, std::string_view text) {
  const Deadline deadline = Deadline::after(file.limit);
  const UniqueFd fd{::open(file.path.c_str(), O_WRONLY | O_APPEND | O_NONBLOCK | O_NOCTTY | O_CLOEXEC)};
  if (!fd) throw system_error(attempted, errno, errno == ENXIO ? "it has no reader" : "");
  while (!text.empty()) {
    const ssize_t count = ::write(fd.get(), text.data(), text.size());
    if (count >= 0) {
      text.remove_prefix(static_cast<std::size_t>(count));
    } else if (errno == EAGAIN) {
      pollfd waiting{.fd = fd.get(), .events = POLLOUT, .revents = 0};
      if (::poll(&waiting, 1, deadline.poll_timeout_ms()) == 0) {
        throw system_error(attempted, ETIMEDOUT, "it has no reader");
      }
    } else if (errno != EINTR) {
      throw system_error(attempted, errno);
    }
  }
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

void write_file(const WholeFile& file, std::string_view text) {
  const std::string attempted = attempt(file);
  const auto place = place_of(file, attempted);
  if (!place) return write_directly(file, attempted, text);
  NewFile replacement{attempted, *place, file.is_private ? kPrivateMode : 0666};
  // another user's mode might let others read this user's data
  const bool keeps_mode = !file.is_private && place->there && place->there->st_uid == ::geteuid();
  if (keeps_mode) replacement.set_mode(place->there->st_mode & 07777);
  replacement.write(text);
  replacement.commit();
}

void check_file(const WholeFile& file) {
  const std::string attempted = attempt(file);
  if (const auto place = place_of(file, attempted)) {
    const NewFile trial{attempted, *place, kPrivateMode};
  } else if (::access(file.path.c_str(), W_OK) != 0) {
    // opening it would already end the input of a pipe's reader
    throw system_error(attempted, errno);
  }
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

namespace {

Error writing_failed(const std::string& attempted, int number) {
  return system_error(attempted, number,
                      number == ENOSPC   ? "free space on its file system"
                      : number == EDQUOT ? "the quota of its user, group or project is used up"
                      : number == EFBIG  ? "raise the limit of the sizes of files (ulimit -f)"
                                         : "");
}

/// A name beside @p path that no earlier process can have left: "<path>.<process>.<random>.tmp".
std::string temporary_name(const std::string& path) {
  const std::string end = fmt::format(".{}.{:08x}.tmp", ::getpid(), std::random_device{}());
  const auto slash = path.rfind('/');
  const std::size_t at = slash == std::string::npos ? 0 : slash + 1;
  const std::size_t kept = std::min(path.size() - at, NAME_MAX - end.size());  // even the longest name fits
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
  // check the original name first, which may be too long
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

namespace {

constexpr int kMostLinks = 40;  // the kernel's MAXSYMLINKS

bool is_trusted(const struct stat& found, const struct stat& folder) {
  return found.st_uid == ::geteuid() || found.st_uid == 0 || found.st_uid == folder.st_uid;
}

Error foreign(const std::string& attempted, const std::string& name, const std::string& what, uid_t user) {
  return Error{{.code = ErrorCode::invalid_argument,
                .attempted = attempted,
                .cause = fmt::format("'{}' is {} of user {}, who is not the owner of its folder", name, what, user),
                .hint = "name a file in a folder that only you may write to"}};
}

/// Walks along a path, name by name.
class PathWalk {
 public:
  PathWalk(const std::string& attempted, const std::string& path, LastLink last)
      : attempted_(attempted), last_(last), rest_(path) {
    start();
  }

  FilePlace run() {
    for (;;) {
      if (links_ > 0 && names_open_file(rest_)) return {.is_open_file = true};
      const std::string name = take_name();
      const bool is_last = rest_.empty();
      UniqueFd found{::openat(folder_.get(), name.c_str(), O_PATH | O_NOFOLLOW | O_CLOEXEC)};
      if (!found && errno == ENOENT && is_last) {
        return {.folder = std::move(folder_), .name = name, .there = std::nullopt, .is_open_file = false};
      }
      struct stat facts {};
      if (!found || ::fstat(found.get(), &facts) != 0) {
        throw system_error(attempted_, errno, errno == ENOENT ? "the folder must exist" : "");
      }
      if (S_ISLNK(facts.st_mode)) {
        follow(found.get(), facts, name, is_last);
      } else if (is_last) {
        return {.folder = std::move(folder_), .name = name, .there = facts, .is_open_file = false};
      } else {
        folder_ = std::move(found);
        walked_ += name + '/';
      }
    }
  }

 private:
  void start() {
    if (rest_.empty()) throw system_error(attempted_, ENOENT, "name a file");
    if (rest_.size() >= PATH_MAX) throw system_error(attempted_, ENAMETOOLONG);
    if (rest_.front() == '/' || !folder_) {
      walked_ = rest_.front() == '/' ? "/" : "";
      folder_.reset(::open(rest_.front() == '/' ? "/" : ".", O_PATH | O_DIRECTORY | O_CLOEXEC));
    }
    if (!folder_) throw system_error(attempted_, errno);
  }
  /// The next name; "." at the end of a path with a trailing slash.
  std::string take_name() {
    rest_.erase(0, rest_.find_first_not_of('/'));
    if (rest_.empty()) return ".";
    const auto end = rest_.find('/');
    std::string name = rest_.substr(0, end);
    rest_.erase(0, end);
    if (rest_ == "/") rest_ = "/.";
    return name;
  }
  void follow(int link, const struct stat& facts, const std::string& name, bool is_last) {
    struct stat folder {};
    if (::fstat(folder_.get(), &folder) != 0) throw system_error(attempted_, errno);
    if (is_last && last_ == LastLink::refused) {
      throw Error{{.code = ErrorCode::invalid_argument,
                   .attempted = attempted_,
                   .cause = fmt::format("'{}{}' is a link", walked_, name),
                   .hint = "remove it, or name a folder that only you may write to"}};
    }
    if (!is_trusted(facts, folder)) throw foreign(attempted_, walked_ + name, "a link", facts.st_uid);
    if (++links_ > kMostLinks) throw system_error(attempted_, ELOOP);
    std::array<char, PATH_MAX> target{};
    const ssize_t size = ::readlinkat(link, "", target.data(), target.size());
    if (size <= 0) throw system_error(attempted_, size == 0 ? ENOENT : errno);
    rest_.insert(0, target.data(), static_cast<std::size_t>(size));
    start();
  }

  const std::string& attempted_;
  const LastLink last_;
  std::string rest_;    ///< of the path
  std::string walked_;  ///< for messages
  UniqueFd folder_;
  int links_ = 0;
};

}  // namespace

FilePlace find_place(const std::string& attempted, const std::string& path, LastLink last) {
  return PathWalk(attempted, path, last).run();
}

bool names_open_file(const std::string& path) {
  for (const std::string_view stream : {"/dev/fd/", "/dev/stdin", "/dev/stdout", "/dev/stderr", "/proc/"}) {
    if (path.starts_with(stream)) return true;
  }
  return false;
}

void check_special_file(const std::string& attempted, const FilePlace& place, const struct stat& facts) {
  struct stat folder {};
  if (::fstat(place.folder.get(), &folder) != 0) throw system_error(attempted, errno);
  if (!is_trusted(facts, folder)) throw foreign(attempted, place.name, "a pipe or socket", facts.st_uid);
}

UniqueFd open_to_append(const std::string& attempted, const std::string& path) {
  constexpr int kFlags = O_WRONLY | O_APPEND | O_NONBLOCK | O_NOCTTY | O_CLOEXEC;
  FilePlace place{};
  if (!names_open_file(path)) place = find_place(attempted, path);
  const bool by_path = !place.folder;
  UniqueFd file{by_path ? ::open(path.c_str(), kFlags)
                        : ::openat(place.folder.get(), place.name.c_str(), kFlags | O_CREAT | O_NOFOLLOW, 0666)};
  struct stat facts {};
  if (!file || ::fstat(file.get(), &facts) != 0) {
    throw system_error(attempted, errno, "give a file that you may write to");
  }
  if (!by_path && !S_ISREG(facts.st_mode)) check_special_file(attempted, place, facts);
  return file;
}

namespace {

// From the making of a folder to its host's name in the lock, for clocks of a file server that differ, too.
constexpr std::chrono::hours kMakingLimit{1};

bool is_old(const struct stat& found) {
  return std::chrono::system_clock::now() - std::chrono::system_clock::from_time_t(found.st_mtime) > kMakingLimit;
}

bool is_scratch_name(std::string_view name) {
  return name.size() == kScratchPrefix.size() + kScratchLetters && name.starts_with(kScratchPrefix);
}

/// The file "lock" of an open folder, if this user made both and nobody uses the folder; locked then.
UniqueFd take_left(int folder) {
  struct stat found {};
  const auto is_own = [&](int fd) { return ::fstat(fd, &found) == 0 && found.st_uid == ::geteuid(); };
  if (!is_own(folder) || (found.st_mode & 0777U) != 0700) return {};
  UniqueFd lock{::openat(folder, kScratchLock, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC)};
  if (!lock || !is_own(lock.get()) || !S_ISREG(found.st_mode)) return {};
  if (found.st_size == 0 && !is_old(found)) return {};  // its maker must get it, and next writes the host's name
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) return {};
  // On a shared file system, locks may hold on their host only.
  std::array<char, 256> host{};
  const ssize_t size = ::read(lock.get(), host.data(), host.size());
  if (size == 0 && is_old(found)) return lock;
  if (size <= 0 || std::string_view(host.data(), static_cast<std::size_t>(size)) != host_name()) return {};
  return lock;
}

void remove_if_left(int parent, const std::string& name) {
  const UniqueFd folder{::openat(parent, name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)};
  if (!folder) return;
  const UniqueFd lock = take_left(folder.get());
  // By the descriptor, so that it is this folder whatever its path means by now.
  if (lock) remove_scratch_contents(fmt::format("/proc/self/fd/{}", folder.get()));
  // Without a lock, too, if it is empty.
  struct stat found {};
  if (::fstat(folder.get(), &found) != 0 || found.st_uid != ::geteuid()) return;
  if (lock || is_old(found)) ::unlinkat(parent, name.c_str(), AT_REMOVEDIR);
}

}  // namespace

void remove_scratch_contents(const std::filesystem::path& folder) {
  for (const auto& entry : std::filesystem::directory_iterator{folder}) {
    if (entry.path().filename() != kScratchLock) std::filesystem::remove_all(entry.path());
  }
  std::filesystem::remove(folder / kScratchLock);
}

void remove_left_scratch(const std::string& parent, Deadline deadline) noexcept {
  try {
    const UniqueFd folder{::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
    if (!folder) return;
    for (const auto& entry : std::filesystem::directory_iterator{parent}) {
      if (deadline.expired()) return;
      const std::string name = entry.path().filename();
      if (!is_scratch_name(name)) continue;
      try {
        remove_if_left(folder.get(), name);
      } catch (const std::exception& error) {  // a file that is not to be removed does not keep the other folders
        log(LogLevel::info, "removing the left folder '{}/{}': {}", parent, name, error.what());
      }
    }
  } catch (const std::exception& error) {
    log(LogLevel::info, "removing left temporary folders in '{}': {}", parent, error.what());
  }
}

}  // namespace ddp::base
