// What accept(2) gives to libpmix: clients whose whole first message is there, while silent, slow and wrong ones come,
// hold and go.
#include "pmix_server/accept_guard.hpp"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/resource.h>

#include "base/socket.hpp"

namespace ddp::launcher {
namespace {

constexpr auto kLimit = 20s;

/// As libpmix: a socket that does not block, and a poll of it alone before each accept(2).
class Listener {
 public:
  Listener() : socket_(base::listen_tcp("127.0.0.1")) {}

  base::UniqueFd connect() const {
    base::UniqueFd client{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
    address.sin_port = ::htons(base::local_port(socket_.get()));
    EXPECT_EQ(::connect(client.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address), 0) << errno;
    return client;
  }

  /// The next connection that is given out; empty after @p limit.
  base::UniqueFd next(std::chrono::milliseconds limit = kLimit) const {
    const Deadline deadline = Deadline::after(limit);
    while (base::wait_for(socket_.get(), POLLIN, deadline)) {
      sockaddr_storage address{};
      socklen_t length = sizeof address;
      base::UniqueFd got{::accept(socket_.get(), reinterpret_cast<sockaddr*>(&address), &length)};
      if (got) {
        EXPECT_EQ(address.ss_family, AF_INET);
        return got;
      }
      EXPECT_EQ(errno, EAGAIN);
    }
    return {};
  }

 private:
  base::UniqueFd socket_;
};

std::string greeting(std::uint32_t length) {
  std::string text(kGreetingHeaderBytes, '\xff');
  std::memcpy(text.data() + 8, &length, sizeof length);
  return text + std::string(length, 'x');
}

void say(const base::UniqueFd& client, const std::string& text) {
  ASSERT_EQ(::send(client.get(), text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
}

bool is_closed(const base::UniqueFd& client, std::chrono::milliseconds limit) {
  if (!base::wait_for(client.get(), POLLIN, Deadline::after(limit))) return false;
  char byte = 0;
  const ssize_t got = ::recv(client.get(), &byte, 1, MSG_DONTWAIT);
  return got == 0 || (got < 0 && errno != EAGAIN);
}

std::string read_all(const base::UniqueFd& connection, std::size_t size) {
  std::string text(size, '\0');
  EXPECT_EQ(::recv(connection.get(), text.data(), size, MSG_WAITALL), static_cast<ssize_t>(size));
  return text;
}

TEST(AcceptGuardTest, ASilentClientHoldsNobodyUpAndIsHungUpOn) {
  const AcceptGuard guard{300ms};
  const Listener listener;
  const base::UniqueFd silent = listener.connect();
  const base::UniqueFd half = listener.connect();
  say(half, greeting(100).substr(0, 50));
  EXPECT_FALSE(listener.next(50ms));
  const base::UniqueFd good = listener.connect();
  say(good, greeting(100));
  const base::UniqueFd got = listener.next();
  ASSERT_TRUE(got);
  EXPECT_EQ(read_all(got, 116), greeting(100)) << "nothing of it was taken";
  EXPECT_TRUE(is_closed(silent, kLimit));
  EXPECT_TRUE(is_closed(half, kLimit));
  EXPECT_FALSE(listener.next(50ms));
}

TEST(AcceptGuardTest, ASlowClientIsGivenOutWhenItsMessageIsWhole) {
  const AcceptGuard guard{1h};
  const Listener listener;
  const base::UniqueFd slow = listener.connect();
  EXPECT_FALSE(listener.next(20ms));
  const std::string text = greeting(40);
  for (const char& byte : text) {
    say(slow, std::string(1, byte));
    const bool look = &byte != &text.back() && (&byte - text.data()) % 16 == 0;
    EXPECT_FALSE(look && listener.next(5ms));
  }
  // No other client comes: the guard wakes the listener.
  EXPECT_TRUE(listener.next());
}

TEST(AcceptGuardTest, AllThatAreCompleteAreGivenOut) {
  const AcceptGuard guard{1h};
  const Listener listener;
  std::vector<base::UniqueFd> clients(30);
  for (auto& client : clients) client = listener.connect();
  EXPECT_FALSE(listener.next(20ms));
  for (const auto& client : clients) say(client, greeting(0));
  for (std::size_t i = 0; i < clients.size(); ++i) ASSERT_TRUE(listener.next()) << i;
}

TEST(AcceptGuardTest, WhoSaysWhatNoClientSaysIsHungUpOnAtOnce) {
  const AcceptGuard guard{1h};
  const Listener listener;
  const base::UniqueFd wrong = listener.connect();
  say(wrong, greeting(kLongestGreetingBytes + 1).substr(0, kGreetingHeaderBytes));
  const base::UniqueFd web = listener.connect();
  say(web, "GET / HTTP/1.1\r\n\r\n");
  { const base::UniqueFd gone = listener.connect(); }
  EXPECT_FALSE(listener.next(20ms));
  EXPECT_TRUE(is_closed(wrong, kLimit));
  EXPECT_TRUE(is_closed(web, kLimit));
}

TEST(AcceptGuardTest, TheOldestGivesWayToTheCrowd) {
  const AcceptGuard guard{1h};
  const Listener listener;
  std::vector<base::UniqueFd> crowd;
  for (std::size_t i = 0; i <= AcceptGuard::kMostIncomplete; ++i) {
    crowd.push_back(listener.connect());
    EXPECT_FALSE(listener.next(1ms));
  }
  EXPECT_FALSE(listener.next(20ms));
  EXPECT_TRUE(is_closed(crowd.front(), kLimit));
  const base::UniqueFd good = listener.connect();
  say(good, greeting(10));
  EXPECT_TRUE(listener.next());
}

TEST(AcceptGuardTest, AClientComesInWhereTheSilentHaveTakenAllDescriptors) {
  const AcceptGuard guard{1h};
  const Listener listener;
  std::vector<base::UniqueFd> crowd;
  for (int i = 0; i < 8; ++i) crowd.push_back(listener.connect());
  const base::UniqueFd good = listener.connect();
  say(good, greeting(10));
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const base::UniqueFd next_free{::dup(STDERR_FILENO)};
  rlimit few = before;
  few.rlim_cur = static_cast<rlim_t>(next_free.get()) + 4;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  const base::UniqueFd got = listener.next();
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_TRUE(got);
  EXPECT_TRUE(is_closed(crowd.front(), kLimit));
}

TEST(AcceptGuardTest, WithoutAGuardAcceptIsTheSystems) {
  const Listener listener;
  const base::UniqueFd silent = listener.connect();
  EXPECT_TRUE(listener.next());
}

}  // namespace
}  // namespace ddp::launcher
