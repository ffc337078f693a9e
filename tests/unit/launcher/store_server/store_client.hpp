// A client of a TCPStore server for tests: says what it is told to, with a deadline on everything.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include <ddp/deadline.hpp>
#include <ddp/error.hpp>

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
  /// Closes with RST instead of FIN.
  void reset() {
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    socket_.reset();
  }
  void close() { socket_.reset(); }
  int fd() const { return socket_.get(); }

 private:
  base::UniqueFd socket_;
};

}  // namespace ddp::test
