// A client of a TCPStore server for tests: says what it is told to, with a deadline on everything.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <ddp/deadline.hpp>
#include <ddp/error.hpp>

#include "base/errors.hpp"
#include "base/socket.hpp"
#include "base/unique_fd.hpp"
#include "support/store_requests.hpp"

namespace ddp::test {

/// Longest time that anything may take that must happen; far above what it takes on a busy machine.
inline constexpr std::chrono::seconds kPatience{60};

class StoreClient {
 public:
  explicit StoreClient(std::uint16_t port, bool validates = true, const std::string& host = "127.0.0.1")
      : socket_(base::connect_tcp(host, port, Deadline::after(kPatience))) {
    if (validates) send(store_request::validate());
  }

  /// From @p source, a loopback address: the server takes these for different hosts.
  static StoreClient from(const std::string& source, std::uint16_t port, bool validates = true) {
    base::UniqueFd socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    sockaddr_in address{};
    address.sin_family = AF_INET;
    ::inet_pton(AF_INET, source.c_str(), &address.sin_addr);
    if (!socket || ::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      throw base::system_error("taking the address " + source, errno);
    }
    return on(std::move(socket), port, validates);
  }
  /// On a TCP socket that is not connected yet.
  static StoreClient on(base::UniqueFd socket, std::uint16_t port, bool validates = true) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      throw base::system_error("connecting to the server", errno);
    }
    ::fcntl(socket.get(), F_SETFL, O_NONBLOCK);
    StoreClient client{std::move(socket)};
    if (validates) client.send(store_request::validate());
    return client;
  }

  void send(const std::string& bytes) {
    base::send_all(socket_.get(), std::as_bytes(std::span{bytes}), Deadline::after(kPatience), "sending to the server");
  }
  std::string receive(std::size_t size) {
    std::string bytes(size, '\0');
    base::receive_exactly(socket_.get(), std::as_writable_bytes(std::span{bytes}), Deadline::after(kPatience),
                          "reading from the server");
    return bytes;
  }
  /// Sends @p request, and receives as many bytes as @p expected has.
  std::string ask(const std::string& request, const std::string& expected) {
    send(request);
    return receive(expected.size());
  }
  /// A PING and its answer: all that was sent before has been dealt with.
  bool ping() {
    const std::string nonce = store_request::integer(std::uint32_t{0x01020304});
    return ask(store_request::ping(0x01020304), nonce) == nonce;
  }

  /// Whether the server closes the connection within @p limit, whatever it sends before.
  bool is_closed(std::chrono::milliseconds limit = kPatience) {
    const Deadline deadline = Deadline::after(limit);
    while (base::wait_for(socket_.get(), POLLIN, deadline)) {
      std::byte byte;
      const ssize_t count = ::recv(socket_.get(), &byte, 1, 0);
      if (count == 0 || (count < 0 && errno != EAGAIN && errno != EINTR)) return true;
    }
    return false;
  }
  /// Whether the server closes the connection, and sends nothing before.
  bool is_refused() {
    if (!base::wait_for(socket_.get(), POLLIN, Deadline::after(kPatience))) return false;
    std::byte byte;
    return ::recv(socket_.get(), &byte, 1, 0) <= 0;
  }
  /// Whether the server neither sends anything nor closes the connection for @p time.
  bool is_kept_waiting(std::chrono::milliseconds time = std::chrono::milliseconds(300)) {
    return !base::wait_for(socket_.get(), POLLIN, Deadline::after(time));
  }
  /// Closes with RST instead of FIN.
  void reset() {
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    socket_.reset();
  }
  void close() { socket_.reset(); }
  int fd() const { return socket_.get(); }

 private:
  explicit StoreClient(base::UniqueFd socket) : socket_(std::move(socket)) {}

  base::UniqueFd socket_;
};

}  // namespace ddp::test
