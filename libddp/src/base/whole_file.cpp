#include "base/whole_file.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>

#include <fmt/format.h>

#include <ddp/deadline.hpp>

#include "base/new_file.hpp"
#include "base/system_error.hpp"

namespace ddp::base {
namespace {

constexpr mode_t kPrivateMode = 0600;

std::string attempt(const WholeFile& file) {
  return file.attempted.empty() ? fmt::format("writing '{}'", file.path) : file.attempted;
}

/// Where it lies; nothing if it is written to directly. Standard output may be a file that already has the job's output
/// in it.
std::optional<FilePlace> place_of(const WholeFile& file, const std::string& attempted) {
  if (names_open_file(file.path)) return std::nullopt;
  FilePlace place = find_place(attempted, file.path, file.last);
  if (place.is_open_file) return std::nullopt;
  if (!place.there) return place;
  if (S_ISDIR(place.there->st_mode)) throw system_error(attempted, EISDIR, "give the name of a file");
  if (S_ISREG(place.there->st_mode)) return place;
  if (file.last == LastLink::refused) throw system_error(attempted, EEXIST, "it is there and no file");
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
  // another's mode may let others read what is this user's
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
    // opening it would already tell the reader of a pipe that all is over
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

}  // namespace ddp::base
