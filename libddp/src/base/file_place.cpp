#include "base/file_place.hpp"

#include <fcntl.h>
#include <limits.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string_view>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/system_error.hpp"

namespace ddp::base {
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

/// Goes along a path, name by name.
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
  /// The next name; "." for a path that ends in a slash.
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

}  // namespace ddp::base
