// Worker servers that answer well, wrongly or not at all, as a thread of this process; a real one is asked in
// tests/commands/ddp_info_status.bats.
#include "diagnostics/hang/torch_worker_server.hpp"

#include <pthread.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <ddp/error.hpp>

#include "base/unique_fd.hpp"
#include "support/error_of.hpp"

namespace ddp::diagnostics {
namespace {

/// Gives each of the answers to one connection, then keeps quiet.
class WorkerServer {
 public:
  explicit WorkerServer(std::vector<std::string> answers) : answers_(std::move(answers)) {
    EXPECT_NE(::mkdtemp(folder_), nullptr);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path_ = std::string{folder_} + "/server";
    path_.copy(address.sun_path, sizeof address.sun_path - 1);
    listening_.reset(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(::bind(listening_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(listening_.get(), 8), 0);
    thread_ = std::thread{[this] { serve(); }};
    ::pthread_setname_np(thread_.native_handle(), "pt_workerserver");
  }
  ~WorkerServer() {
    ::shutdown(listening_.get(), SHUT_RDWR);  // ends accept
    thread_.join();
    ::unlink(path_.c_str());
    ::rmdir(folder_);
  }
  WorkerServer& operator=(WorkerServer&&) = delete;

 private:
  void serve() {
    std::vector<base::UniqueFd> quiet;
    for (std::size_t next = 0;; ++next) {
      base::UniqueFd client{::accept(listening_.get(), nullptr, nullptr)};
      if (!client) return;
      if (next >= answers_.size()) {
        quiet.push_back(std::move(client));
        continue;
      }
      char request[512];
      EXPECT_GT(::recv(client.get(), request, sizeof request, 0), 0);
      const std::string& answer = answers_[next];
      EXPECT_EQ(::send(client.get(), answer.data(), answer.size(), MSG_NOSIGNAL), static_cast<ssize_t>(answer.size()));
    }
  }

  char folder_[32] = "/tmp/worker-server.XXXXXX";
  std::string path_;
  base::UniqueFd listening_;
  const std::vector<std::string> answers_;
  std::thread thread_;
};

std::string http_answer(const std::string& status, const std::string& body) {
  return "HTTP/1.1 " + status + "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

std::vector<std::string> answers_from(std::vector<std::string> answers, std::chrono::milliseconds limit) {
  const WorkerServer server{std::move(answers)};
  const std::string socket = find_worker_server("/proc", ::getpid());
  EXPECT_THAT(socket, testing::EndsWith("/server"));
  return ask_worker_server(socket, Deadline::after(limit));
}

ErrorCode failure_of(std::vector<std::string> answers, std::chrono::milliseconds limit = std::chrono::seconds{60}) {
  return test::thrown_by([&] { answers_from(std::move(answers), limit); }).code();
}

TEST(TorchWorkerServer, IsFoundAndGivesTheRecordersItHas) {
  constexpr std::chrono::seconds kLong{60};
  EXPECT_THAT(answers_from({http_answer("200 OK", "{}"), http_answer("200 OK", "[1]")}, kLong),
              ElementsAre("{}", "[1]"));
  EXPECT_THAT(answers_from({http_answer("200 OK", "{}"), http_answer("404 Not Found", "no")}, kLong),
              ElementsAre("{}"));
  EXPECT_THAT(find_worker_server("/proc", ::getpid()), IsEmpty());
}

TEST(TorchWorkerServer, FailuresAreErrors) {
  EXPECT_EQ(failure_of({http_answer("500 Internal Server Error", "")}), ErrorCode::unavailable);
  EXPECT_EQ(failure_of({"SSH-2.0-OpenSSH_9.2\r\n"}), ErrorCode::protocol);
  EXPECT_EQ(failure_of({""}), ErrorCode::protocol);
  EXPECT_EQ(failure_of({}, std::chrono::milliseconds{50}), ErrorCode::timeout);
}

}  // namespace
}  // namespace ddp::diagnostics
