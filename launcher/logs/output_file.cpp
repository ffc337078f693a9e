#include "logs/output_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/errors.hpp"

namespace ddp::launcher {

void make_private_folders(const std::string& path) {
  struct stat found {};
  if (path.empty() || (::stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode))) return;
  make_private_folders(std::filesystem::path{path}.parent_path().string());
  if (::mkdir(path.c_str(), 0700) == 0) return;
  const int error = errno;
  // another agent may have created it
  if (error == EEXIST && ::stat(path.c_str(), &found) == 0 && S_ISDIR(found.st_mode)) return;
  throw base::system_error(fmt::format("making the folder '{}'", path), error == EEXIST ? ENOTDIR : error);
}

OutputFile OutputFile::create(const std::string& path, Complaint complaint, std::chrono::milliseconds retry_after) {
  make_private_folders(std::filesystem::path{path}.parent_path().string());
  const std::string attempted = fmt::format("making the log file '{}'", path);
  // O_APPEND: a file that is truncated to free space must not get a hole. What is there may be another user's trap: a
  // link to one of this user's files, or a pipe.
  constexpr int kFlags = O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC | O_NOCTTY;
  base::UniqueFd fd{::open(path.c_str(), kFlags, 0600)};
  struct stat found {};
  if (!fd || ::fstat(fd.get(), &found) != 0) throw base::system_error(attempted, errno);
  const bool device = S_ISCHR(found.st_mode) && found.st_uid == 0;
  if (!device && (!S_ISREG(found.st_mode) || found.st_uid != ::geteuid() || found.st_nlink > 1)) {
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = attempted,
                 .cause = !S_ISREG(found.st_mode) ? "it exists and is not a file"
                          : found.st_nlink > 1    ? "it is there and has another name"
                                                  : fmt::format("it exists and belongs to user {}", found.st_uid),
                 .hint = "set --log-dir to a folder that only you may write to"}};
  }
  if (!device && ::ftruncate(fd.get(), 0) != 0) throw base::system_error(attempted, errno);
  return OutputFile{std::move(fd), fmt::format("the log file '{}'", path), std::move(complaint), retry_after};
}

OutputFile::OutputFile(base::UniqueFd fd, std::string name, Complaint complaint, std::chrono::milliseconds retry_after)
    : fd_(std::move(fd)), name_(std::move(name)), complaint_(std::move(complaint)), retry_after_(retry_after) {}

void OutputFile::write(std::string_view bytes) {
  if (bytes.empty() || !fd_) return;
  if (missing_ == 0) {
    put({}, bytes);
  } else if (Clock::now() < retry_at_) {
    lose(bytes);
  } else {
    // After the gap, writing resumes at the start of a line.
    std::size_t start = 0;
    if (!line_taken_) {
      const std::size_t newline = bytes.find('\n');
      start = newline == std::string_view::npos ? bytes.size() : newline + 1;
      lose(bytes.substr(0, start));
    }
    if (start < bytes.size()) put(note(), bytes.substr(start));
  }
}

void OutputFile::close() {
  if (fd_ && missing_ > 0) put(note(), {});
  fd_.reset();
}

std::string OutputFile::note() const {
  return fmt::format("{}ddprun: {} bytes are missing here: {} [{}]\n", line_written_ ? "" : "\n", missing_,
                     base::errno_text(error_), base::errno_name(error_));
}

void OutputFile::put(std::string_view note, std::string_view bytes) {
  int error = 0;
  if (!note.empty()) {
    const std::size_t written = write_some(note, error);
    if (written > 0) line_written_ = written == note.size();
    if (written == note.size()) missing_ = 0;
  }
  if (error == 0) {
    const std::size_t written = write_some(bytes, error);
    if (written > 0) {
      line_taken_ = line_written_ = bytes[written - 1] == '\n';
      bytes.remove_prefix(written);
    }
  }
  if (error == 0) return;
  error_ = error;
  retry_at_ = Clock::now() + retry_after_;
  lose(bytes);
  if (std::exchange(complained_, true)) return;
  complaint_(fmt::format("ddprun: writing {}: {} [{}]; lines are dropped until it can be written again", name_,
                         base::errno_text(error), base::errno_name(error)));
}

std::size_t OutputFile::write_some(std::string_view bytes, int& error) {
  std::size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t written = ::write(fd_.get(), bytes.data() + done, bytes.size() - done);
    if (written > 0) {
      done += static_cast<std::size_t>(written);
    } else if (written == 0 || errno != EINTR) {
      error = written == 0 ? ENOSPC : errno;
      break;
    }
  }
  return done;
}

void OutputFile::lose(std::string_view bytes) {
  if (bytes.empty()) return;
  missing_ += bytes.size();
  line_taken_ = bytes.back() == '\n';
}

}  // namespace ddp::launcher
