// Files, folders and pipes for the tests of logs.
#pragma once

#include <poll.h>

#include <ddp/deadline.hpp>

#include "base/unique_fd.hpp"

namespace ddp::launcher {

/// Far longer than anything takes, so that a busy machine does not matter.
inline constexpr std::chrono::seconds kGenerous{60};

/// A folder of its own, gone at the end of the test.
class TemporaryFolder {
 public:
  TemporaryFolder() : path_((std::filesystem::temp_directory_path() / "ddp_logs.XXXXXX").string()) {
    if (::mkdtemp(path_.data()) == nullptr) throw std::runtime_error("mkdtemp");
  }
  TemporaryFolder& operator=(TemporaryFolder&&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline std::string content_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

inline std::vector<std::string> split_lines(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t newline = text.find('\n', at);
    lines.push_back(text.substr(at, newline - at));
    if (newline == std::string::npos) break;
    at = newline + 1;
  }
  return lines;
}

struct Pipe {
  base::UniqueFd reading, writing;
  Pipe() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
    reading.reset(ends[0]);
    writing.reset(ends[1]);
  }
};

inline void write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) throw std::runtime_error("write");
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
}

inline std::string read_to_end(int fd) {
  std::string text;
  std::array<char, 65536> buffer;
  for (;;) {
    const ssize_t size = ::read(fd, buffer.data(), buffer.size());
    if (size < 0 && errno == EINTR) continue;
    if (size <= 0) return text;
    text.append(buffer.data(), static_cast<std::size_t>(size));
  }
}

/// What arrives until the text is @p expected long or time is up.
inline std::string read_bytes(int fd, std::size_t expected) {
  const Deadline deadline = Deadline::after(kGenerous);
  std::string text;
  std::array<char, 65536> buffer;
  while (text.size() < expected) {
    pollfd ready{.fd = fd, .events = POLLIN, .revents = 0};
    if (::poll(&ready, 1, deadline.poll_timeout_ms()) <= 0) break;
    const ssize_t size = ::read(fd, buffer.data(), std::min(buffer.size(), expected - text.size()));
    if (size <= 0) break;
    text.append(buffer.data(), static_cast<std::size_t>(size));
  }
  return text;
}

inline bool eventually(const std::function<bool()>& condition) {
  const Deadline deadline = Deadline::after(kGenerous);
  while (!condition()) {
    if (deadline.expired()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

/// A console that is read all the time, and can be read to its end once the writing end is closed.
class ReadConsole {
 public:
  ReadConsole() : text_(std::async(std::launch::async, [fd = pipe_.reading.get()] { return read_to_end(fd); })) {}
  ReadConsole& operator=(ReadConsole&&) = delete;
  ~ReadConsole() { pipe_.writing.reset(); }  // or the reader would not end
  int fd() const { return pipe_.writing.get(); }
  std::string text() {
    pipe_.writing.reset();
    return text_.get();
  }

 private:
  Pipe pipe_;
  std::future<std::string> text_;
};

}  // namespace ddp::launcher
