#include "diagnostics/metrics/metrics_endpoint.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <exception>
#include <iterator>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "base/address_lookup.hpp"
#include "base/socket.hpp"
#include "base/system_error.hpp"
#include "diagnostics/metrics/http_request.hpp"
#include "diagnostics/metrics/own_host.hpp"

namespace ddp::diagnostics {
namespace {

constexpr const char* kContentType = "text/plain; version=0.0.4; charset=utf-8";

base::UniqueFd listen_at(const std::string& address, std::uint16_t port) {
  const std::string attempted = fmt::format("serving metrics at {} port {}", address, port);
  const base::AddressList found = base::resolve(address, port, AI_NUMERICHOST | AI_PASSIVE, attempted);
  base::UniqueFd socket = base::listen_at(*found);
  const int error = errno;
  if (socket) return socket;
  throw base::system_error(
      attempted, error, error == EADDRINUSE ? "another job of this host has the port: give each its own, or auto" : "");
}

}  // namespace

bool is_numeric_address(const std::string& text) {
  in6_addr bytes{};
  return ::inet_pton(AF_INET, text.c_str(), &bytes) == 1 || ::inet_pton(AF_INET6, text.c_str(), &bytes) == 1;
}

struct MetricsEndpoint::Connection {
  base::UniqueFd socket;
  Deadline end;
  std::string request{};
  std::string head{};  ///< of the answer; empty: the request is not complete
  std::shared_ptr<const std::string> body{};
  std::size_t written = 0;
  std::size_t surplus = 0;  ///< bytes that came after the request

  bool answered() const { return !head.empty() && written == head.size() + body->size(); }
};

MetricsEndpoint::MetricsEndpoint(const std::string& address, std::uint16_t port, Render render, MetricsLimits limits)
    : address_(address),
      render_(std::move(render)),
      limits_(limits),
      domains_(own_domains()),
      events_(::epoll_create1(EPOLL_CLOEXEC)),
      timer_(::timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)),
      listener_(listen_at(address, port)),
      port_(base::local_port(listener_.get())),
      page_end_(Deadline::after(std::chrono::seconds(0))) {
  if (!events_ || !timer_) throw base::system_error("serving metrics (epoll_create1, timerfd_create)", errno);
  watch(timer_.get(), EPOLLIN, &timer_, EPOLL_CTL_ADD);
  watch(listener_.get(), EPOLLIN, &listener_, EPOLL_CTL_ADD);
}

MetricsEndpoint::~MetricsEndpoint() = default;

std::string MetricsEndpoint::url() const {
  const bool bracketed = address_.find(':') != std::string::npos;
  return fmt::format("http://{}{}{}:{}/metrics", bracketed ? "[" : "", address_, bracketed ? "]" : "", port_);
}

void MetricsEndpoint::watch(int fd, std::uint32_t events, void* tag, int operation) {
  epoll_event event{};
  event.events = events;
  event.data.ptr = tag;
  if (::epoll_ctl(events_.get(), operation, fd, &event) != 0)
    throw base::system_error("serving metrics (epoll_ctl)", errno);
}

void MetricsEndpoint::serve() {
  std::array<epoll_event, 32> events;
  const int count = ::epoll_wait(events_.get(), events.data(), static_cast<int>(events.size()), 0);
  bool accept = false;
  for (int i = 0; i < count; ++i) {
    void* const tag = events.at(static_cast<std::size_t>(i)).data.ptr;
    if (tag == &listener_) {
      accept = true;
    } else if (tag == &timer_) {
      std::uint64_t expirations = 0;
      [[maybe_unused]] const ssize_t ignored = ::read(timer_.get(), &expirations, sizeof expirations);
      if (std::exchange(rests_, false)) watch(listener_.get(), EPOLLIN, &listener_, EPOLL_CTL_MOD);
    } else {
      const auto place = std::find_if(connections_.begin(), connections_.end(),
                                      [&](const auto& connection) { return connection.get() == tag; });
      if (place != connections_.end() && !advance(**place)) close(place);
    }
  }
  close_overdue();
  if (accept) accept_some();  // last, so that it closes no connection whose event is yet to be handled
  arm_timer();
}

void MetricsEndpoint::accept_some() {
  for (int i = 0; i < limits_.accepted_at_once; ++i) {
    base::UniqueFd socket{::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)};
    if (!socket && errno != EAGAIN && base::client_waits(listener_.get())) {
      // No descriptor or no memory is left: the client would wake this process again and again.
      rests_ = true;
      watch(listener_.get(), 0, &listener_, EPOLL_CTL_MOD);
    }
    if (!socket) return;
    if (connections_.size() >= limits_.connections) close(connections_.begin());
    const int fd = socket.get();
    connections_.push_back(std::make_unique<Connection>(
        Connection{.socket = std::move(socket), .end = Deadline::after(limits_.connection)}));
    watch(fd, EPOLLIN, connections_.back().get(), EPOLL_CTL_ADD);
    // what has come with the connection is answered at once
    if (const auto place = std::prev(connections_.end()); !advance(**place)) close(place);
  }
}

void MetricsEndpoint::close(Place place) { connections_.erase(place); }  // epoll forgets what is closed

bool MetricsEndpoint::advance(Connection& connection) {
  return read(connection) && (connection.head.empty() || connection.answered() || write(connection));
}

bool MetricsEndpoint::read(Connection& connection) {
  std::array<char, kMostRequestBytes> block;
  const ssize_t count = ::recv(connection.socket.get(), block.data(), block.size(), 0);
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  if (count == 0) return false;
  if (!connection.head.empty()) {  // it is read, so that the end is no reset
    connection.surplus += static_cast<std::size_t>(count);
    return connection.surplus <= kMostRequestBytes;
  }
  connection.request.append(block.data(), static_cast<std::size_t>(count));
  answer(connection);
  return true;
}

void MetricsEndpoint::answer(Connection& connection) {
  const HttpVerdict verdict = judge_request(connection.request, domains_);
  if (verdict == HttpVerdict::incomplete) return;
  std::string_view status = status_line(verdict);
  if (verdict == HttpVerdict::metrics) {
    try {
      connection.body = page();
    } catch (const std::exception&) {
      status = "500 Internal Server Error";
    }
  }
  if (!connection.body) connection.body = std::make_shared<const std::string>(std::string(status) + "\n");
  connection.head =
      fmt::format("HTTP/1.1 {}\r\nContent-Type: {}\r\nContent-Length: {}\r\n{}Connection: close\r\n\r\n", status,
                  kContentType, connection.body->size(), verdict == HttpVerdict::wrong_method ? "Allow: GET\r\n" : "");
  connection.request = {};
}

bool MetricsEndpoint::write(Connection& connection) {
  while (!connection.answered()) {
    const bool in_head = connection.written < connection.head.size();
    const std::string_view rest =
        in_head ? std::string_view{connection.head}.substr(connection.written)
                : std::string_view{*connection.body}.substr(connection.written - connection.head.size());
    const ssize_t count =
        ::send(connection.socket.get(), rest.data(), rest.size(), MSG_NOSIGNAL | (in_head ? MSG_MORE : 0));
    if (count < 0) {
      if (errno != EAGAIN && errno != EINTR) return false;
      watch(connection.socket.get(), EPOLLIN | EPOLLOUT, &connection, EPOLL_CTL_MOD);
      return true;
    }
    connection.written += static_cast<std::size_t>(count);
  }
  // The client closes; if this end did it first, with bytes unread, the kernel would throw away the answer.
  ::shutdown(connection.socket.get(), SHUT_WR);
  watch(connection.socket.get(), EPOLLIN, &connection, EPOLL_CTL_MOD);
  return true;
}

std::shared_ptr<const std::string> MetricsEndpoint::page() {
  if (!page_ || page_end_.expired()) {
    page_ = std::make_shared<const std::string>(render_());
    page_end_ = Deadline::after(limits_.reuse);
  }
  return page_;
}

void MetricsEndpoint::close_overdue() {
  while (!connections_.empty() && connections_.front()->end.expired()) close(connections_.begin());
}

void MetricsEndpoint::arm_timer() {
  itimerspec when{};
  if (rests_) {
    when.it_value.tv_sec = 1;
  } else if (!connections_.empty()) {
    const int left_ms = connections_.front()->end.poll_timeout_ms() + 1;
    when.it_value.tv_sec = left_ms / 1000;
    when.it_value.tv_nsec = left_ms % 1000 * 1'000'000;
  }
  ::timerfd_settime(timer_.get(), 0, &when, nullptr);
}

}  // namespace ddp::diagnostics
