#include "diagnostics/metrics/metrics_endpoint.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <exception>
#include <fstream>
#include <iterator>
#include <sstream>
#include <utility>

#include <fmt/format.h>

#include "base/errors.hpp"
#include "base/host_name.hpp"
#include "base/socket.hpp"

namespace ddp::diagnostics {
namespace {

constexpr const char* kContentType = "text/plain; version=0.0.4; charset=utf-8";

std::vector<base::UniqueFd> listen_at(const std::string& address, std::uint16_t port) {
  const std::string attempted = fmt::format("serving metrics at {} port {}", address, port);
  const base::AddressList found = base::resolve(address, port, AI_NUMERICHOST | AI_PASSIVE, attempted);
  base::UniqueFd socket = base::listen_at(*found);
  const int error = errno;
  if (!socket)
    throw base::system_error(
        attempted, error,
        error == EADDRINUSE ? "another job of this host has the port: give each its own, or auto" : "");
  std::vector<base::UniqueFd> sockets;
  sockets.push_back(std::move(socket));
  return sockets;
}

}  // namespace

bool is_numeric_address(const std::string& text) {
  in6_addr bytes{};
  return ::inet_pton(AF_INET, text.c_str(), &bytes) == 1 || ::inet_pton(AF_INET6, text.c_str(), &bytes) == 1;
}

struct MetricsEndpoint::Connection {
  base::UniqueFd socket;
  std::string request{};
  std::string head{};  ///< of the answer; empty until the request is complete
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
      strangers_({.most = limits.connections, .patience = limits.connection, .silence = limits.connection}),
      overdue_(loop_, [this] { close_overdue(); }),
      acceptor_(
          loop_, listen_at(address, port),
          [this](base::UniqueFd socket, const sockaddr_storage& from) { take_in(std::move(socket), from); },
          [](int /*listening*/, int /*error*/) { return false; }),
      port_(base::local_port(acceptor_.sockets().front().get())),
      page_end_(Deadline::after(std::chrono::seconds(0))) {}

MetricsEndpoint::~MetricsEndpoint() = default;

std::string MetricsEndpoint::url() const {
  const bool bracketed = address_.find(':') != std::string::npos;
  return fmt::format("http://{}{}{}:{}/metrics", bracketed ? "[" : "", address_, bracketed ? "]" : "", port_);
}

void MetricsEndpoint::serve() { loop_.run_once(Deadline{Deadline::Clock::now()}); }

void MetricsEndpoint::take_in(base::UniqueFd socket, const sockaddr_storage& from) {
  if (strangers_.full()) close(*strangers_.most_crowding());
  const std::uint64_t number = ++last_;
  const int fd = socket.get();
  strangers_.add(number, stream::source_of(from));
  connections_.emplace(number, std::make_unique<Connection>(Connection{.socket = std::move(socket)}));
  loop_.watch(fd, [this, number] { react(number); });
  overdue_.set(strangers_.next_end());
  react(number);  // answers data that came with the connection at once
}

void MetricsEndpoint::close(std::uint64_t number) {
  strangers_.remove(number);
  loop_.forget(connections_.at(number)->socket.get());
  connections_.erase(number);
}

void MetricsEndpoint::react(std::uint64_t number) {
  if (!advance(*connections_.at(number))) close(number);
}

bool MetricsEndpoint::advance(Connection& connection) {
  return read(connection) && (connection.head.empty() || connection.answered() || write(connection));
}

bool MetricsEndpoint::read(Connection& connection) {
  std::array<char, kMostRequestBytes> block;
  const ssize_t count = ::recv(connection.socket.get(), block.data(), block.size(), 0);
  if (count < 0) return errno == EAGAIN || errno == EINTR;
  if (count == 0) return false;
  if (!connection.head.empty()) {  // reads it, so that closing does not reset the connection
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
      loop_.want_write(connection.socket.get(), true);
      return true;
    }
    connection.written += static_cast<std::size_t>(count);
  }
  // The client closes: if this end closed first with unread bytes, the kernel would discard the answer.
  ::shutdown(connection.socket.get(), SHUT_WR);
  loop_.want_write(connection.socket.get(), false);
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
  while (const auto late = strangers_.late()) close(late->number);
  overdue_.set(strangers_.next_end());
}

namespace {

constexpr std::string_view kPath = "/metrics";

/// Whether it is a token of RFC 9110, as methods are.
bool is_method(std::string_view word) {
  return !word.empty() &&
         std::all_of(word.begin(), word.end(), [](char letter) { return letter >= 'A' && letter <= 'Z'; });
}

bool is_text(std::string_view line) {
  return std::all_of(line.begin(), line.end(), [](unsigned char letter) { return letter >= ' ' || letter == '\t'; });
}

HttpVerdict judge_line(std::string_view line) {
  const auto first = line.find(' ');
  const auto second = first == std::string_view::npos ? first : line.find(' ', first + 1);
  if (second == std::string_view::npos) return HttpVerdict::malformed;
  const std::string_view method = line.substr(0, first);
  const std::string_view path = line.substr(first + 1, second - first - 1);
  const std::string_view version = line.substr(second + 1);
  if (!is_method(method) || path.empty() || !version.starts_with("HTTP/")) return HttpVerdict::malformed;
  if (version != "HTTP/1.1" && version != "HTTP/1.0") return HttpVerdict::wrong_version;
  if (method != "GET") return HttpVerdict::wrong_method;
  return path == kPath ? HttpVerdict::metrics : HttpVerdict::unknown_path;
}

std::string_view without_blanks(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  return first == std::string_view::npos ? std::string_view{}
                                         : text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

/// Judges header lines, each with its end. A program need not send a Host; a browser does.
HttpVerdict judge_hosts(std::string_view lines, const std::vector<std::string>& domains) {
  constexpr std::string_view kName = "host:";
  bool found = false;
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, lines.find("\r\n"));
    lines.remove_prefix(std::min(line.size() + 2, lines.size()));
    const bool is_host = line.size() >= kName.size() &&
                         std::equal(kName.begin(), kName.end(), line.begin(), [](char name, unsigned char letter) {
                           return name == static_cast<char>(std::tolower(letter));
                         });
    if (!is_host) continue;
    if (std::exchange(found, true)) return HttpVerdict::malformed;
    if (!is_own_host(without_blanks(line.substr(kName.size())), domains)) return HttpVerdict::foreign_host;
  }
  return HttpVerdict::metrics;
}

}  // namespace

HttpVerdict judge_request(std::string_view received, const std::vector<std::string>& domains) {
  const std::size_t end = received.find("\r\n\r\n");
  if (std::min(end, received.size()) > kMostRequestBytes) return HttpVerdict::too_large;
  // A client that speaks another protocol need not be awaited.
  const std::string_view line = received.substr(0, received.find("\r\n"));
  if (!is_text(line.substr(0, line.find('\r')))) return HttpVerdict::malformed;
  if (end == std::string_view::npos)
    return received.size() == kMostRequestBytes ? HttpVerdict::too_large : HttpVerdict::incomplete;
  const HttpVerdict verdict = judge_line(line);
  if (verdict != HttpVerdict::metrics) return verdict;
  return judge_hosts(received.substr(0, end + 2).substr(line.size() + 2), domains);
}

std::string_view status_line(HttpVerdict verdict) {
  switch (verdict) {
    case HttpVerdict::metrics: return "200 OK";
    case HttpVerdict::unknown_path: return "404 Not Found";
    case HttpVerdict::wrong_method: return "405 Method Not Allowed";
    case HttpVerdict::foreign_host: return "421 Misdirected Request";
    case HttpVerdict::too_large: return "431 Request Header Fields Too Large";
    case HttpVerdict::wrong_version: return "505 HTTP Version Not Supported";
    case HttpVerdict::malformed:
    case HttpVerdict::incomplete: break;
  }
  return "400 Bad Request";
}

namespace {

constexpr std::size_t kMostResolverBytes = 65'536;

std::string lower_name(std::string_view text) {
  std::string lower(text);
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char letter) { return std::tolower(letter); });
  while (lower.ends_with('.')) lower.pop_back();
  return lower;
}

bool is_port(std::string_view text) {
  return text.size() <= 5 &&
         std::all_of(text.begin(), text.end(), [](char letter) { return letter >= '0' && letter <= '9'; });
}

bool is_address(int family, const std::string& text) {
  in6_addr bytes{};
  return ::inet_pton(family, text.c_str(), &bytes) == 1;
}

bool is_label(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](unsigned char letter) {
    return std::isalnum(letter) != 0 || letter == '-' || letter == '_';
  });
}

}  // namespace

std::vector<std::string> domains_in(std::string_view resolver) {
  std::vector<std::string> domains;
  std::istringstream lines{std::string(resolver)};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    if (word != "search" && word != "domain") continue;
    while (words >> word) {
      // a top-level domain would admit every host in it
      if (std::string name = lower_name(word); name.find('.') != std::string::npos) domains.push_back(std::move(name));
    }
  }
  return domains;
}

std::vector<std::string> own_domains() {
  std::ifstream file("/etc/resolv.conf", std::ios::binary);
  std::string text(kMostResolverBytes, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  std::vector<std::string> domains = domains_in(text);
  const std::string own = lower_name(base::host_name());
  if (const auto dot = own.find('.'); dot != std::string::npos) domains.push_back(own.substr(dot + 1));
  return domains;
}

bool is_own_host(std::string_view host, const std::vector<std::string>& domains) {
  if (host.starts_with('[')) {
    const auto end = host.find(']');
    if (end == std::string_view::npos) return false;
    const std::string_view port = host.substr(end + 1);
    return (port.empty() || (port.front() == ':' && is_port(port.substr(1)))) &&
           is_address(AF_INET6, std::string(host.substr(1, end - 1)));
  }
  const auto colon = host.find(':');
  if (colon != std::string_view::npos && !is_port(host.substr(colon + 1))) return false;
  const std::string name = lower_name(host.substr(0, colon));
  if (is_address(AF_INET, name)) return true;
  const auto dot = name.find('.');
  if (!is_label(std::string_view(name).substr(0, dot))) return false;
  if (dot == std::string::npos) return true;
  return std::find(domains.begin(), domains.end(), name.substr(dot + 1)) != domains.end();
}

}  // namespace ddp::diagnostics
