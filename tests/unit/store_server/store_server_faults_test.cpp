// What broken, hostile and dying clients do must not disturb a client that works at the same time.
#include <netinet/in.h>
#include <sys/socket.h>

#include <ctime>

#include "store_client.hpp"
#include "store_server/store_server.hpp"
#include "support/no_descriptors_left.hpp"

namespace ddp::store_server {
namespace {

namespace request = test::store_request;
using request::integer;
using request::kStop;
using request::text;
using test::NoDescriptorsLeft;
using test::StoreClient;

/// A client that works without a pause from its beginning to its end, and fails the test when an answer is wrong or
/// does not come.
class Worker {
 public:
  explicit Worker(std::uint16_t port) : client_(port), thread_([this] { work(); }) {}
  Worker& operator=(Worker&&) = delete;
  ~Worker() {
    // it has still been served after whatever the test did
    const std::int64_t before = rounds_;
    const Deadline deadline = Deadline::after(test::kPatience);
    while (rounds_ < before + 3 && !failed_ && !deadline.expired()) std::this_thread::sleep_for(kPause);
    EXPECT_GE(rounds_, before + 3);
    EXPECT_FALSE(failed_);
    stop_ = true;
    thread_.join();
  }

 private:
  static constexpr std::chrono::milliseconds kPause{1};

  void work() {
    try {
      while (!stop_) {
        const std::int64_t count = rounds_ + 1;
        const std::string value = text(std::to_string(count));
        if (client_.ask(request::add("/worker", 1), integer(count)) != integer(count) ||
            client_.ask(request::wait({"/worker"}), kStop) != kStop ||
            client_.ask(request::get("/worker"), value) != value) {
          failed_ = true;
          return;
        }
        ++rounds_;
      }
    } catch (const Error&) {
      failed_ = true;
    }
  }

  StoreClient client_;
  std::atomic<std::int64_t> rounds_ = 0;
  std::atomic<bool> failed_ = false;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

TEST(StoreServerFaults, ClientsThatBreakTheProtocolAreClosed) {
  const StoreServer server{{}};
  const Worker worker{server.port()};
  const std::vector<std::string> first{"GET / HTTP/1.1\r\n\r\n", std::string("\0abcd", 5), "SSH-2.0-x\r\n",
                                       request::set("/k", "torch 2.0 begins like this"), request::ping(1)};
  for (const std::string& bytes : first) {
    StoreClient client{server.port(), false};
    client.send(bytes);
    EXPECT_TRUE(client.is_closed()) << bytes;
  }
  const std::vector<std::string> later{request::validate(),
                                       request::raw(19),
                                       request::raw(255),
                                       request::raw(3, integer(std::uint64_t{8193})),
                                       request::raw(1, text("/k") + integer(~std::uint64_t{0})),
                                       request::raw(6, integer(std::uint64_t{131073})),
                                       request::set("/text", "x") + request::add("/text", 1)};
  for (const std::string& bytes : later) {
    StoreClient client{server.port()};
    client.send(bytes);
    EXPECT_TRUE(client.is_closed());
  }
}

TEST(StoreServerFaults, AnswersBeforeTheFaultAreStillSent) {
  const StoreServer server{{}};
  StoreClient client{server.port()};
  client.send(request::ping(7) + request::raw(99));
  EXPECT_EQ(client.receive(4), integer(std::uint32_t{7}));
  EXPECT_TRUE(client.is_closed());
}

TEST(StoreServerFaults, RandomBytesDoNoHarm) {
  const StoreServer server{{}};
  const Worker worker{server.port()};
  std::mt19937 random{20240607};
  for (int i = 0; i < 300; ++i) {
    std::string bytes(random() % 2000, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random() % (i % 3 == 0 ? 20 : 256));
    StoreClient client{server.port(), i % 2 == 0};
    try {
      client.send(bytes);
    } catch (const Error&) {  // closed before it had sent all
    }
    if (i % 5 == 0) client.reset();
  }
}

TEST(StoreServerFaults, SilentAndSlowClientsAreClosed) {
  const StoreServer server{{.validation_limit = std::chrono::seconds(1)}};
  const Worker worker{server.port()};
  StoreClient early{server.port()};
  EXPECT_TRUE(early.ping());
  StoreClient silent{server.port(), false};
  StoreClient slow{server.port(), false};
  slow.send(request::validate().substr(0, 4));
  EXPECT_TRUE(silent.is_closed());
  EXPECT_TRUE(slow.is_closed());
  EXPECT_TRUE(early.ping());
}

TEST(StoreServerFaults, WhoSaysNothingIsClosedBeforeWhoIsSlow) {
  const StoreServer server{
      {.validation_limit = std::chrono::hours(1), .silence_limit = std::chrono::milliseconds(200)}};
  const Worker worker{server.port()};
  StoreClient slow{server.port(), false};
  slow.send(request::validate().substr(0, 1));
  StoreClient valid{server.port()};
  std::vector<std::unique_ptr<StoreClient>> silent;
  for (int i = 0; i < 20; ++i) silent.push_back(std::make_unique<StoreClient>(server.port(), false));
  for (const auto& each : silent) EXPECT_TRUE(each->is_closed());
  EXPECT_FALSE(slow.is_closed(std::chrono::milliseconds(300)));
  EXPECT_TRUE(valid.ping());
}

TEST(StoreServerFaults, AValidClientMayBeSilentAndSlow) {
  const StoreServer server{
      {.validation_limit = std::chrono::milliseconds(200), .silence_limit = std::chrono::milliseconds(200)}};
  StoreClient client{server.port()};
  const std::string slow = request::ping(5);
  client.send(slow.substr(0, 3));
  EXPECT_FALSE(client.is_closed(std::chrono::milliseconds(1000)));
  EXPECT_EQ(client.ask(slow.substr(3), integer(std::uint32_t{5})), integer(std::uint32_t{5}));
}

TEST(StoreServerFaults, ClientsThatComeAndGo) {
  const StoreServer server{{}};
  const Worker worker{server.port()};
  for (int i = 0; i < 500; ++i) {
    StoreClient scanner{server.port(), i % 3 == 0};
    if (i % 2 == 0) scanner.reset();
  }
}

TEST(StoreServerFaults, ClientsThatDieWhileTheyWaitAreForgotten) {
  const StoreServer server{{}};
  const Worker worker{server.port()};
  std::vector<std::unique_ptr<StoreClient>> clients;
  for (int i = 0; i < 50; ++i) {
    clients.push_back(std::make_unique<StoreClient>(server.port()));
    clients.back()->send(request::wait({"/k", "/l"}));
  }
  StoreClient lasting{server.port()};
  lasting.send(request::wait({"/k"}));
  for (std::size_t i = 0; i < clients.size(); ++i) i % 2 == 0 ? clients[i]->reset() : clients[i]->close();
  StoreClient setter{server.port()};
  setter.send(request::multi_set({"/k", "1", "/l", "1"}));
  EXPECT_EQ(lasting.receive(1), kStop);
  EXPECT_TRUE(setter.ping());
}

TEST(StoreServerFaults, AnItemForAClientThatDiedGoesToTheNext) {
  const StoreServer server{{}};
  StoreClient first{server.port()};
  first.send(request::wait({"/q"}));
  EXPECT_TRUE(StoreClient{server.port()}.ping());
  StoreClient second{server.port()};
  second.send(request::wait({"/q"}));
  StoreClient pusher{server.port()};
  pusher.send(request::queue_push("/q", "item"));
  EXPECT_EQ(first.receive(1), kStop);
  first.reset();
  EXPECT_EQ(second.receive(1), kStop);
  const std::string expected = integer(std::int64_t{1}) + text("item");
  EXPECT_EQ(second.ask(request::queue_pop("/q"), expected), expected);
}

TEST(StoreServerFaults, ClientsThatDoNotReadAreClosed) {
  const StoreServer server{{}};
  const Worker worker{server.port()};
  StoreClient greedy{server.port()};
  greedy.send(request::set("/k", std::string(8 * 1024 * 1024, 'v')));
  EXPECT_TRUE(greedy.ping());
  std::string requests;
  for (int i = 0; i < 100; ++i) requests += request::get("/k");
  greedy.send(requests);
  EXPECT_TRUE(StoreClient{server.port()}.ping());
  // it reads now, but less than it asked for
  std::size_t got = 0;
  std::vector<char> buffer(1 << 20);
  while (base::wait_for(greedy.fd(), POLLIN, Deadline::after(test::kPatience))) {
    const ssize_t count = ::recv(greedy.fd(), buffer.data(), buffer.size(), 0);
    if (count <= 0) break;
    got += static_cast<std::size_t>(count);
  }
  EXPECT_LT(got, std::size_t{100} * 8 * 1024 * 1024);
}

TEST(StoreServerFaults, AnAnswerOfATebibyteIsRefused) {
  const StoreServer server{{}};
  const Worker worker{server.port()};
  StoreClient greedy{server.port()};
  greedy.send(request::set("/k", std::string(8 * 1024 * 1024, 'v')));
  greedy.send(request::multi_get(std::vector<std::string>(128 * 1024, "/k")));
  EXPECT_TRUE(greedy.is_closed());
}

double cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

std::size_t open_descriptors() {
  const auto entries = std::filesystem::directory_iterator{"/proc/self/fd"};
  return static_cast<std::size_t>(std::distance(begin(entries), end(entries)));
}

/// Returns when this process has @p count descriptors: what the server accepts is among them.
void wait_for_descriptors(std::size_t count) {
  const Deadline deadline = Deadline::after(test::kPatience);
  while (open_descriptors() != count && !deadline.expired()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ASSERT_EQ(open_descriptors(), count);
}

// Sockets that are not accepted belong to the backlog; the test's own ends are made before the limit is lowered.
TEST(StoreServerFaults, WithoutDescriptorsNewClientsAreClosedAndOldOnesServed) {
  const StoreServer server{{}};
  StoreClient old{server.port()};
  EXPECT_TRUE(old.ping());
  std::vector<base::UniqueFd> sockets;
  for (int i = 0; i < 20; ++i) sockets.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  {
    const NoDescriptorsLeft none_left;
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(server.port());
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (const base::UniqueFd& socket : sockets) {
      ASSERT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    }
    const double before = cpu_seconds();
    for (const base::UniqueFd& socket : sockets) {
      ASSERT_TRUE(base::wait_for(socket.get(), POLLIN, Deadline::after(test::kPatience)));
      char byte = 0;
      EXPECT_LE(::recv(socket.get(), &byte, 1, 0), 0);
    }
    EXPECT_TRUE(old.ping());
    std::this_thread::sleep_for(std::chrono::seconds(1));
    EXPECT_LT(cpu_seconds() - before, 0.7);  // a thread that spins would have used all of the second
  }
  sockets.clear();
  EXPECT_TRUE(StoreClient{server.port()}.ping());
}

TEST(StoreServerFaults, WithoutDescriptorsSilentClientsAreEvicted) {
  const StoreServer server{{}};
  base::UniqueFd socket{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  const std::size_t before = open_descriptors();
  StoreClient silent{server.port(), false};
  StoreClient old{server.port()};
  EXPECT_TRUE(old.ping());
  wait_for_descriptors(before + 4);  // both ends of two connections
  const NoDescriptorsLeft none_left;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(server.port());
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const std::string hello = request::validate() + request::ping(3);
  ASSERT_EQ(::send(socket.get(), hello.data(), hello.size(), MSG_NOSIGNAL), static_cast<ssize_t>(hello.size()));
  std::uint32_t answer = 0;
  ASSERT_TRUE(base::wait_for(socket.get(), POLLIN, Deadline::after(test::kPatience)));
  EXPECT_EQ(::recv(socket.get(), &answer, sizeof answer, MSG_WAITALL), 4);
  EXPECT_EQ(answer, 3U);
  EXPECT_TRUE(silent.is_closed());
  EXPECT_TRUE(old.ping());
}

}  // namespace
}  // namespace ddp::store_server
