// Clients of a TCPStore server, fast enough that the server is what is measured. Implements the protocol itself, so the
// same program drives every contender.
//   bench_store_clients PORT [CONNECTIONS [OPERATIONS|exchange]]
// Each connection has one request in flight, like torch's client. Prints a JSON line: for each kind of operation, the
// seconds for all OPERATIONS; with "exchange" those until each connection has a value of each, by a request for each
// value and in pages, as TcpStoreClient::get_all().
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace {

using Clock = std::chrono::steady_clock;

/// Limit for an answer. A healthy server needs microseconds.
constexpr int kPatienceMs = 60'000;
/// The size of an address or an NCCL unique id.
constexpr std::size_t kValueBytes = 128;
constexpr std::size_t kAnswerBytes = sizeof(std::uint64_t) + kValueBytes;
/// As TcpStoreClient::kPageRanks.
constexpr int kPage = 64;

[[noreturn]] void fail(const char* what) {
  std::fprintf(stderr, "bench_store_clients: %s: %s\n", what, std::strerror(errno));
  std::exit(1);
}

template <class Int>
std::string integer(Int value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}
std::string text(std::string_view value) { return integer(std::uint64_t{value.size()}) + std::string{value}; }
std::string operation(int code) { return std::string(1, static_cast<char>(code)); }

// torch/csrc/distributed/c10d/TCPStoreBackend.hpp. SET has no answer; the PING behind it has.
std::string validate() { return operation(0) + integer(std::uint32_t{0x3C85F7CE}); }
std::string ping() { return operation(13) + integer(std::uint32_t{0x01020304}); }
std::string set(const std::string& key) { return operation(1) + text(key) + text(std::string(kValueBytes, 'v')); }
std::string get(const std::string& key) { return operation(3) + text(key); }
std::string add(const std::string& key) { return operation(4) + text(key) + integer(std::int64_t{1}); }
std::string wait(const std::string& key) { return operation(6) + integer(std::uint64_t{1}) + text(key); }
std::string of_several(int code, const std::vector<std::string>& keys) {
  std::string request = operation(code) + integer(std::uint64_t{keys.size()});
  for (const std::string& key : keys) request += text(key);
  return request;
}
std::string check(const std::vector<std::string>& keys) { return of_several(5, keys); }
std::string multi_get(const std::vector<std::string>& keys) { return of_several(10, keys); }

/// One kind of request and the size of its answer.
struct Kind {
  const char* name;
  std::function<std::string(int connection, int turn)> request;
  std::size_t answer_bytes;
};

int connect_to(int port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (fd < 0 || ::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) fail("connecting");
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  return fd;
}

class Clients {
 public:
  Clients(int port, int connections) : epoll_(::epoll_create1(EPOLL_CLOEXEC)), clients_(connections) {
    for (std::size_t i = 0; i < clients_.size(); ++i) {
      clients_[i].fd = connect_to(port);
      epoll_event event{.events = EPOLLIN, .data = {.u64 = i}};
      if (::epoll_ctl(epoll_, EPOLL_CTL_ADD, clients_[i].fd, &event) != 0) fail("watching");
      send(i, validate());
    }
  }

  /// @return seconds until @p operations requests, divided evenly, are answered.
  double run(const Kind& kind, int operations) {
    const int each = operations / static_cast<int>(clients_.size());
    for (std::size_t i = 0; i < clients_.size(); ++i) {
      clients_[i].requests.clear();
      for (int turn = 0; turn < each; ++turn) clients_[i].requests.push_back(kind.request(static_cast<int>(i), turn));
      clients_[i].next = 0;
    }
    const auto begin = Clock::now();
    std::size_t busy = clients_.size();
    for (std::size_t i = 0; i < clients_.size(); ++i) ask(i, kind);
    while (busy > 0) {
      std::array<epoll_event, 64> events;
      const int count = ::epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), kPatienceMs);
      if (count <= 0) fail(count == 0 ? "no answer" : "waiting");
      for (int k = 0; k < count; ++k) {
        const auto i = static_cast<std::size_t>(events[static_cast<std::size_t>(k)].data.u64);
        if (!receive(i)) continue;
        if (clients_[i].next == clients_[i].requests.size()) {
          --busy;
        } else {
          ask(i, kind);
        }
      }
    }
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }

 private:
  struct Client {
    int fd = -1;
    std::vector<std::string> requests;
    std::size_t next = 0;
    std::size_t outstanding = 0;  ///< bytes of the answer still missing
  };

  void ask(std::size_t i, const Kind& kind) {
    clients_[i].outstanding = kind.answer_bytes;
    send(i, clients_[i].requests[clients_[i].next++]);
  }
  void send(std::size_t i, const std::string& bytes) {
    if (::send(clients_[i].fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(bytes.size())) {
      fail("sending");
    }
  }
  /// @return whether the answer is complete.
  bool receive(std::size_t i) {
    std::array<char, 4096> buffer;
    const ssize_t count = ::recv(clients_[i].fd, buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (count < 0 && errno == EAGAIN) return false;
    if (count <= 0) fail("receiving");
    if (static_cast<std::size_t>(count) > clients_[i].outstanding) fail("answer too long");
    clients_[i].outstanding -= static_cast<std::size_t>(count);
    return clients_[i].outstanding == 0;
  }

  int epoll_;
  std::vector<Client> clients_;
};

std::string own_key(int connection, int turn) {
  return "/worker/" + std::to_string(connection) + "/" + std::to_string(turn % 100);
}

std::vector<std::string> keys_of(int first, int count) {
  std::vector<std::string> keys;
  for (int i = first; i < first + count; ++i) keys.push_back(own_key(i, 0));
  return keys;
}

/// What @p connections ranks do to learn a value of each other. @p operations: of all connections together.
struct Exchange {
  Kind kind;
  int operations;
};

std::vector<Exchange> exchanges(int connections) {
  const int page = std::min(connections, kPage);
  const auto one = [](int, int turn) { return check(keys_of(turn, 1)) + get(own_key(turn, 0)); };
  const auto several = [page](int, int turn) {
    const std::vector<std::string> keys = keys_of(turn * page, page);
    return check(keys) + multi_get(keys);
  };
  return {{{"gets", one, 1 + kAnswerBytes}, connections * connections},
          {{"pages", several, 1 + static_cast<std::size_t>(page) * kAnswerBytes}, connections * (connections / page)}};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: bench_store_clients PORT [CONNECTIONS [OPERATIONS|exchange]]\n");
    return 2;
  }
  const int port = std::atoi(argv[1]);
  const int connections = argc > 2 ? std::max(1, std::atoi(argv[2])) : 64;
  Clients clients{port, connections};
  nlohmann::ordered_json seconds;
  if (argc > 3 && std::string_view{argv[3]} == "exchange") {
    if (connections > kPage && connections % kPage != 0) {
      std::fprintf(stderr, "bench_store_clients: an exchange is of at most %d or a multiple of it\n", kPage);
      return 2;
    }
    clients.run({"set", [](int connection, int) { return set(own_key(connection, 0)) + ping(); }, 4}, connections);
    for (const auto& [kind, operations] : exchanges(connections)) {
      seconds[kind.name] = clients.run(kind, operations);
    }
  } else {
    const int operations = argc > 3 ? std::atoi(argv[3]) : 10'000;
    const std::vector<Kind> kinds{
        {"ping", [](int, int) { return ping(); }, 4},
        {"set", [](int connection, int turn) { return set(own_key(connection, turn)) + ping(); }, 4},
        {"get", [](int connection, int turn) { return get(own_key(connection, turn)); }, kAnswerBytes},
        {"add", [](int, int) { return add("/counter"); }, sizeof(std::int64_t)},
        {"wait", [](int connection, int turn) { return wait(own_key(connection, turn)); }, 1},
    };
    for (const Kind& kind : kinds) seconds[kind.name] = clients.run(kind, operations);
  }
  std::printf("%s\n", seconds.dump().c_str());
}
