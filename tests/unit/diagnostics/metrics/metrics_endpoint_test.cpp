// The endpoint as Prometheus and as strangers meet it.
#include "diagnostics/metrics/metrics_endpoint.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <ddp/error.hpp>

#include "base/socket.hpp"
#include "support/error_of.hpp"

namespace ddp::diagnostics {
namespace {

const Deadline kPatience = Deadline::after(std::chrono::seconds(300));

TEST(HttpRequest, OnlyAGetOfThePathIsAnswered) {
  EXPECT_EQ(judge_request("GET /metrics HTTP/1.1\r\nHost: n0\r\n\r\n"), HttpVerdict::metrics);
  EXPECT_EQ(judge_request("GET /metrics HTTP/1.0\r\n\r\n"), HttpVerdict::metrics);
  for (const char* part :
       {"", "GET", "GET /metrics HTTP/1.1", "GET /metrics HTTP/1.1\r\n", "GET / HTTP/1.1\r\nA: b\r\n\r"})
    EXPECT_EQ(judge_request(part), HttpVerdict::incomplete) << part;
  for (const char* path : {"/", "/metrics/", "/metrics?a=b", "//metrics", "http://n0/metrics", "/../metrics"})
    EXPECT_EQ(judge_request(std::string("GET ") + path + " HTTP/1.1\r\n\r\n"), HttpVerdict::unknown_path) << path;
  for (const char* method : {"POST", "HEAD", "PUT", "CONNECT"})
    EXPECT_EQ(judge_request(std::string(method) + " /metrics HTTP/1.1\r\n\r\n"), HttpVerdict::wrong_method) << method;
  for (const char* wrong :
       {"GET\r\n\r\n", "GET /metrics\r\n\r\n", "get /metrics HTTP/1.1\r\n\r\n", " / HTTP/1.1\r\n\r\n",
        "GET  HTTP/1.1\r\n\r\n", "GET /metrics FTP/1.1\r\n\r\n", "\r\n\r\n", "\x16\x03\x01"})
    EXPECT_EQ(judge_request(wrong), HttpVerdict::malformed) << wrong;
  EXPECT_EQ(judge_request("GET /metrics HTTP/2\r\n\r\n"), HttpVerdict::wrong_version);
  EXPECT_EQ(judge_request("GET /" + std::string(kMostRequestBytes, 'a')), HttpVerdict::too_large);
  EXPECT_EQ(judge_request("GET /metrics HTTP/1.1\r\nA: " + std::string(kMostRequestBytes, 'a') + "\r\n\r\n"),
            HttpVerdict::too_large);
}

TEST(HttpRequest, AnotherHostsPageIsNotAnswered) {
  const std::vector<std::string> domains{"cluster.example", "site.example.org"};
  for (const char* host : {"127.0.0.1", "127.0.0.1:9464", "[::1]", "[fe80::1]:80", "localhost", "LOCALHOST:1", "n0",
                           "n0-ib0:9464", "n0.cluster.example", "N0.Cluster.Example.:80", "n0.site.example.org:9464"}) {
    EXPECT_TRUE(is_own_host(host, domains)) << host;
  }
  for (const char* host : {"", "evil.com", "n0.evil.com:9464", "n0.cluster.example.evil.com", "a.n0.cluster.example",
                           "127.0.0.1.evil.com", "[::1].evil.com", "[::1", "[evil.com]", "n0:port", "n0:9464:1",
                           "cluster.example", "1.2.3", "n0/x", "n0 evil.com"}) {
    EXPECT_FALSE(is_own_host(host, domains)) << host;
  }
  const auto asked = [&](const std::string& lines) {
    return judge_request("GET /metrics HTTP/1.1\r\n" + lines + "\r\n", domains);
  };
  EXPECT_EQ(asked("Accept: */*\r\nhOST: \t evil.com:80 \r\n"), HttpVerdict::foreign_host);
  EXPECT_EQ(asked("Host:n0.cluster.example\r\nX-Host: evil.com\r\n"), HttpVerdict::metrics);
  EXPECT_EQ(asked("Host: n0\r\nHost: n0\r\n"), HttpVerdict::malformed);
  EXPECT_EQ(asked("Host:\r\n"), HttpVerdict::foreign_host);
  EXPECT_EQ(status_line(HttpVerdict::foreign_host), "421 Misdirected Request");
  EXPECT_EQ(domains_in("# search x.example\nnameserver 1.1.1.1\nsearch Cluster.Example. com\tb.c\ndomain d.e\n"),
            (std::vector<std::string>{"cluster.example", "b.c", "d.e"}));
}

/// An endpoint in a thread of its own, and clients.
struct MetricsEndpointTest : testing::Test {
  ~MetricsEndpointTest() override { stop(); }

  void start(MetricsLimits limits = {}) {
    endpoint_ = std::make_unique<MetricsEndpoint>(
        "127.0.0.1", 0, [this] { return ++rendered_, render_(); }, limits);
    thread_ = std::thread([this] {
      while (!over_) {
        pollfd entry{.fd = endpoint_->fd(), .events = POLLIN, .revents = 0};
        ::poll(&entry, 1, 20);
        ++turns_;
        if (entry.revents != 0) endpoint_->serve();
      }
    });
  }
  void stop() {
    over_ = true;
    if (thread_.joinable()) thread_.join();
  }
  base::UniqueFd connect() const {
    base::UniqueFd socket = base::connect_tcp("127.0.0.1", endpoint_->port(), kPatience);
    return socket;
  }
  static void say(const base::UniqueFd& socket, const std::string& text) {
    base::send_all(socket.get(), std::as_bytes(std::span{text}), kPatience, "asking");
  }
  /// All that comes until the other end closes, or resets.
  static std::string hear(const base::UniqueFd& socket) {
    std::string text;
    while (base::wait_for(socket.get(), POLLIN, kPatience)) {
      std::array<char, 65536> block{};
      const ssize_t count = ::recv(socket.get(), block.data(), block.size(), 0);
      if (count <= 0) break;
      text.append(block.data(), static_cast<std::size_t>(count));
    }
    return text;
  }
  std::string ask(const std::string& request = "GET /metrics HTTP/1.1\r\n\r\n") const {
    const base::UniqueFd socket = connect();
    say(socket, request);
    return hear(socket);
  }

  std::function<std::string()> render_ = [] { return std::string("ddp_up 1\n"); };
  std::atomic<int> rendered_ = 0;
  std::atomic<int> turns_ = 0;
  std::unique_ptr<MetricsEndpoint> endpoint_;
  std::atomic<bool> over_ = false;
  std::thread thread_;
};

TEST_F(MetricsEndpointTest, AnswersAndRefuses) {
  start();
  EXPECT_EQ(endpoint_->url(), "http://127.0.0.1:" + std::to_string(endpoint_->port()) + "/metrics");
  EXPECT_EQ(ask(),
            "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: 9\r\n"
            "Connection: close\r\n\r\nddp_up 1\n");
  EXPECT_THAT(ask("GET / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404 Not Found\r\n"));
  EXPECT_THAT(ask("POST /metrics HTTP/1.1\r\n\r\n"), HasSubstr("\r\nAllow: GET\r\n"));
  EXPECT_THAT(ask(std::string(5000, 'a')), StartsWith("HTTP/1.1 431 "));
  EXPECT_THAT(ask("\x16\x03\x01"), StartsWith("HTTP/1.1 400 "));
}

TEST_F(MetricsEndpointTest, ManyLettersAtATimeOrAllLateMakeNoDifference) {
  start();
  const base::UniqueFd socket = connect();
  for (const char letter : std::string("GET /metrics HTTP/1.1\r\n\r\n")) say(socket, std::string(1, letter));
  EXPECT_THAT(hear(socket), EndsWith("\r\n\r\nddp_up 1\n"));
}

TEST_F(MetricsEndpointTest, LongAnswersArriveWhole) {
  const std::string body(20'000'000, 'x');
  render_ = [&] { return body; };
  start({.connection = std::chrono::seconds(300)});
  EXPECT_EQ(ask().size() - body.size(), std::string_view("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4; "
                                                         "charset=utf-8\r\nContent-Length: 20000000\r\nConnection: "
                                                         "close\r\n\r\n")
                                            .size());
}

TEST_F(MetricsEndpointTest, StrangersHoldNoPlaceAndMakeNoWork) {
  start({.connections = 4, .connection = std::chrono::seconds(300), .reuse = std::chrono::seconds(300)});
  std::vector<base::UniqueFd> silent;
  for (int i = 0; i < 20; ++i) {
    silent.push_back(connect());
    say(silent.back(), "GET /met");
  }
  for (int i = 0; i < 20; ++i) EXPECT_THAT(ask(), StartsWith("HTTP/1.1 200 ")) << i;
  EXPECT_EQ(rendered_, 1) << "all get the same answer";
  EXPECT_EQ(hear(silent.front()), "") << "the oldest gave its place to a new one";
  stop();
  EXPECT_LE(endpoint_->connections(), 4U);
}

TEST_F(MetricsEndpointTest, WhoIsSlowIsHungUpOn) {
  start({.connection = std::chrono::milliseconds(200)});
  const base::UniqueFd silent = connect();
  EXPECT_EQ(hear(silent), "");
  EXPECT_THAT(ask(), StartsWith("HTTP/1.1 200 "));
}

TEST_F(MetricsEndpointTest, WhoTalksOnIsHungUpOn) {
  start({.connection = std::chrono::seconds(300)});
  const base::UniqueFd socket = connect();
  say(socket, "GET /metrics HTTP/1.1\r\n\r\n");
  EXPECT_THROW(
      {
        for (int i = 0; i < 1'000'000; ++i) say(socket, std::string(1000, 'a'));
      },
      Error);
}

TEST_F(MetricsEndpointTest, SleepsWhileNobodyAsks) {
  start();
  ask();
  const Deadline limit = kPatience;
  // the connection's end is the last event
  for (int quiet = 0; quiet < 3 && !limit.expired();) {
    const int before = turns_;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    quiet = turns_ - before <= 10 ? quiet + 1 : 0;  // the loop of this test itself turns each 20 ms
  }
  EXPECT_FALSE(limit.expired());
}

TEST_F(MetricsEndpointTest, AFailureToRenderIsAnAnswer) {
  render_ = []() -> std::string { throw std::runtime_error("no"); };
  start();
  EXPECT_THAT(ask(), StartsWith("HTTP/1.1 500 "));
}

TEST_F(MetricsEndpointTest, APortThatIsTakenIsAnError) {
  start();
  const Error error = test::thrown_by(
      [&] { const MetricsEndpoint second("127.0.0.1", endpoint_->port(), [] { return std::string(); }); });
  EXPECT_THAT(error.what(), HasSubstr("EADDRINUSE"));
  EXPECT_THAT(error.what(), HasSubstr("auto"));
}

TEST(NumericAddress, NamesAreNone) {
  EXPECT_TRUE(is_numeric_address("0.0.0.0") && is_numeric_address("::1"));
  EXPECT_FALSE(is_numeric_address("localhost") || is_numeric_address("") || is_numeric_address("1.2.3"));
}

}  // namespace
}  // namespace ddp::diagnostics
