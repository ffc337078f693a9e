#include "diagnostics/hang/torch_worker_server.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <span>
#include <sstream>
#include <string_view>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/socket.hpp"
#include "base/unique_fd.hpp"

namespace ddp::diagnostics {
namespace {

namespace files = std::filesystem;

constexpr std::size_t kMostAnswerBytes = std::size_t{32} << 20U;
constexpr const char* kThreadName = "pt_workerserver";
constexpr std::uint64_t kListens = 0x10000;  // __SO_ACCEPTCON, include/linux/net.h
constexpr const char* kAsking = "asking PyTorch's worker server";
// Those of Gloo and, in builds with CUDA, of NCCL. Without the parameter the latter gives the unfinished ones only.
constexpr const char* kHandlers[]{"fr_trace_json", "dump_nccl_trace_json?onlyactive=false"};

[[noreturn]] void fail_to_ask(ErrorCode code, std::string cause, std::string native = {}) {
  throw Error{{.code = code, .attempted = kAsking, .cause = std::move(cause), .native = std::move(native)}};
}

bool has_server_thread(const std::string& process) {
  std::error_code status;
  for (files::directory_iterator thread{process + "/task", status}, end; !status && thread != end;
       thread.increment(status)) {
    std::ifstream file{thread->path() / "comm"};
    std::string name;
    if (std::getline(file, name) && name == kThreadName) return true;
  }
  return false;
}

/// Inodes of its sockets.
std::set<std::uint64_t> sockets_of(const std::string& process) {
  constexpr std::string_view kPrefix = "socket:[";
  std::set<std::uint64_t> inodes;
  std::error_code status;
  for (files::directory_iterator fd{process + "/fd", status}, end; !status && fd != end; fd.increment(status)) {
    std::error_code gone;
    const std::string target = files::read_symlink(fd->path(), gone).string();
    std::uint64_t inode = 0;
    if (target.starts_with(kPrefix) &&
        std::from_chars(target.data() + kPrefix.size(), target.data() + target.size(), inode).ec == std::errc{})
      inodes.insert(inode);
  }
  return inodes;
}

/// Sockets with names longer than sockaddr_un's are reached by a descriptor of the file.
base::UniqueFd connect_unix(const std::string& path) {
  const base::UniqueFd file{::open(path.c_str(), O_PATH | O_CLOEXEC)};
  if (!file) fail_to_ask(ErrorCode::unavailable, fmt::format("{} cannot be opened", path), std::strerror(errno));
  base::UniqueFd socket{::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)};
  if (!socket) fail_to_ask(ErrorCode::system, "there is no socket", std::strerror(errno));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const auto end = fmt::format_to_n(address.sun_path, sizeof address.sun_path - 1, "/proc/self/fd/{}", file.get());
  *end.out = '\0';
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    fail_to_ask(ErrorCode::unavailable, fmt::format("{} does not accept", path), std::strerror(errno));
  return socket;
}

std::string receive_all(int fd, Deadline deadline) {
  std::string text;
  char buffer[65536];
  for (;;) {
    if (!base::wait_for(fd, POLLIN, deadline))
      fail_to_ask(ErrorCode::timeout, "it did not answer in time", "ETIMEDOUT");
    const ssize_t size = ::recv(fd, buffer, sizeof buffer, 0);
    if (size < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (size < 0) fail_to_ask(ErrorCode::unavailable, "the connection was lost", std::strerror(errno));
    if (size == 0) return text;
    text.append(buffer, static_cast<std::size_t>(size));
    if (text.size() > kMostAnswerBytes) fail_to_ask(ErrorCode::protocol, "the answer has more than 32 MiB");
  }
}

/// Nothing where this PyTorch has no such handler.
std::optional<std::string> ask_handler(const std::string& path, const std::string& handler, Deadline deadline) {
  const base::UniqueFd socket = connect_unix(path);
  const std::string request = fmt::format(
      "POST /handler/{} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", handler);
  base::send_all(socket.get(), std::as_bytes(std::span{request}), deadline, kAsking);
  std::string answer = receive_all(socket.get(), deadline);
  const std::size_t body = answer.find("\r\n\r\n");
  if (!answer.starts_with("HTTP/1.") || answer.size() < 12 || body == std::string::npos)
    fail_to_ask(ErrorCode::protocol, "the process listening there does not speak HTTP");
  const std::string_view status{answer.data() + 9, 3};
  if (status == "404") return std::nullopt;
  if (status != "200") fail_to_ask(ErrorCode::unavailable, "it answered with an error", std::string{status});
  return answer.substr(body + 4);
}

}  // namespace

std::string find_worker_server(const std::string& proc, pid_t pid) {
  const std::string process = fmt::format("{}/{}", proc, pid);
  if (!has_server_thread(process)) return {};
  const std::set<std::uint64_t> own = sockets_of(process);
  std::ifstream table{process + "/net/unix"};  // Num RefCount Protocol Flags Type St Inode Path
  for (std::string line; std::getline(table, line);) {
    std::istringstream fields{line};
    std::string skipped;
    std::uint64_t flags = 0;
    std::uint64_t inode = 0;
    std::string path;
    fields >> skipped >> skipped >> skipped >> std::hex >> flags >> skipped >> skipped >> std::dec >> inode;
    std::getline(fields >> std::ws, path);
    if (!fields || (flags & kListens) == 0 || path.empty() || path.front() == '@' || !own.contains(inode)) continue;
    return process + (path.front() == '/' ? "/root" : "/cwd/") + path;
  }
  return {};
}

std::vector<std::string> ask_worker_server(const std::string& socket, Deadline deadline) {
  std::vector<std::string> dumps;
  for (const char* handler : kHandlers) {
    if (auto dump = ask_handler(socket, handler, deadline)) dumps.push_back(std::move(*dump));
  }
  return dumps;
}

}  // namespace ddp::diagnostics
