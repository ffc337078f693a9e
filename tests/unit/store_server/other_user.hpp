// A client that another user of this host runs: this process forks, and the child becomes that user.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace ddp::test {

inline constexpr uid_t kOtherUser = 65534;

inline bool can_be_other_user() { return ::geteuid() == 0; }

/// Whether a client of that user, from 127.0.0.1 to @p port, is closed without an answer to VALIDATE and PING. False
/// also where it could not connect. Only calls that are safe after a fork of a process with threads.
inline bool other_user_is_refused(std::uint16_t port) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::setresuid(kOtherUser, kOtherUser, kOtherUser) != 0) ::_exit(2);
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) ::_exit(3);
    const char hello[] =
        "\x00\xCE\xF7\x85\x3C\x0D"
        "1234";
    [[maybe_unused]] const ssize_t sent = ::send(fd, hello, sizeof hello - 1, MSG_NOSIGNAL);
    char answer[4];
    ::_exit(::recv(fd, answer, sizeof answer, 0) > 0 ? 1 : 0);
  }
  int status = -1;
  ::waitpid(pid, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace ddp::test
