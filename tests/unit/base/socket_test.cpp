// TCP with deadlines against peers that refuse, stay silent, do not read, or disappear in the middle of a message.
#include <dlfcn.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <ddp/bytes.hpp>
#include <ddp/error.hpp>

#include "base/socket.hpp"
#include "support/error_of.hpp"

namespace ddp::base {
namespace {

struct Outcome {
  ErrorCode code;
  std::string text;
  std::string native;
  milliseconds took;
};

Outcome failure_of(const std::function<void()>& action) {
  const auto begin = Deadline::Clock::now();
  const auto took = [&] { return std::chrono::duration_cast<milliseconds>(Deadline::Clock::now() - begin); };
  try {
    action();
  } catch (const Error& error) {
    return {error.code(), error.what(), error.native(), took()};
  }
  ADD_FAILURE() << "nothing failed";
  return {ErrorCode::aborted, {}, {}, took()};
}

Deadline soon() { return Deadline::after(std::chrono::seconds(10)); }

struct Pair {
  UniqueFd client;
  UniqueFd server;
};

Pair connected_pair() {
  const UniqueFd listener = listen_tcp("127.0.0.1");
  UniqueFd client = connect_tcp("127.0.0.1", local_port(listener.get()), soon());
  if (!wait_for(listener.get(), POLLIN, soon())) ADD_FAILURE() << "no connection";
  UniqueFd server{::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)};
  EXPECT_TRUE(server);
  return {std::move(client), std::move(server)};
}

Bytes pattern(std::size_t size) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(i * 31 % 251);
  return bytes;
}

TEST(Socket, MovesMoreThanFitsIntoTheBuffers) {
  Pair pair = connected_pair();
  const Bytes sent = pattern(8'000'000);
  std::thread sender([&] { send_all(pair.client.get(), sent, soon(), "sending"); });
  Bytes received(sent.size());
  receive_exactly(pair.server.get(), received, soon(), "receiving");
  sender.join();
  EXPECT_TRUE(sent == received);
}

TEST(Socket, SocketsAreNonBlockingAndNotInherited) {
  const UniqueFd listener = listen_tcp("127.0.0.1");
  const UniqueFd client = connect_tcp("127.0.0.1", local_port(listener.get()), soon());
  for (const int fd : {listener.get(), client.get()}) {
    EXPECT_NE(::fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
    EXPECT_NE(::fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
  }
}

TEST(Socket, ListensOnTheAddressOnly) {
  const UniqueFd listener = listen_tcp("127.0.0.1");
  sockaddr_in address{};
  socklen_t size = sizeof address;
  ASSERT_EQ(::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  EXPECT_EQ(address.sin_addr.s_addr, htonl(INADDR_LOOPBACK));
  EXPECT_NE(local_port(listener.get()), 0);
  EXPECT_EQ(failure_of([] { listen_tcp("localhost"); }).code, ErrorCode::invalid_argument);
  EXPECT_EQ(failure_of([] { listen_tcp("192.0.2.1"); }).native, "EADDRNOTAVAIL (99)");
}

int option_of(int fd, int level, int option) {
  int value = -1;
  socklen_t size = sizeof value;
  EXPECT_EQ(::getsockopt(fd, level, option, &value, &size), 0);
  return value;
}

TEST(Socket, ListensAtAGivenPortUnlessItIsTaken) {
  const auto at = [](const char* address, std::uint16_t port) {
    return resolve(address, port, AI_NUMERICHOST | AI_PASSIVE, "listening");
  };
  UniqueFd any = listen_at(*at("127.0.0.1", 0));
  const AddressList taken = at("127.0.0.1", local_port(any.get()));
  EXPECT_FALSE(listen_at(*taken));
  EXPECT_EQ(errno, EADDRINUSE);
  const UniqueFd client = connect_tcp("127.0.0.1", local_port(any.get()), soon());
  ASSERT_TRUE(wait_for(any.get(), POLLIN, soon()));
  UniqueFd accepted{::accept4(any.get(), nullptr, nullptr, SOCK_CLOEXEC)};
  EXPECT_NE(option_of(accepted.get(), IPPROTO_TCP, TCP_NODELAY), 0);
  any.reset();
  accepted.reset();  // whose end of the connection waits for the other's
  EXPECT_TRUE(listen_at(*taken));
}

TEST(Socket, ListensForIPv4OnIPv6UnlessTold) {
  const AddressList everywhere = resolve("::", 0, AI_NUMERICHOST | AI_PASSIVE, "listening");
  const UniqueFd both = listen_at(*everywhere);
  if (!both) GTEST_SKIP() << "no IPv6 here";
  EXPECT_EQ(option_of(both.get(), IPPROTO_IPV6, IPV6_V6ONLY), 0);
  EXPECT_EQ(option_of(listen_at(*everywhere, true).get(), IPPROTO_IPV6, IPV6_V6ONLY), 1);
}

TEST(Socket, RefusalIsUnavailableAndFast) {
  std::uint16_t port = 0;
  {
    const UniqueFd listener = listen_tcp("127.0.0.1");
    port = local_port(listener.get());
  }
  const Outcome outcome = failure_of([&] { connect_tcp("127.0.0.1", port, soon()); });
  EXPECT_EQ(outcome.code, ErrorCode::unavailable);
  EXPECT_EQ(outcome.native, "ECONNREFUSED (111)");
  EXPECT_THAT(outcome.text, HasSubstr("connecting to 127.0.0.1:" + std::to_string(port)));
  EXPECT_LT(outcome.took, std::chrono::seconds(20));
}

TEST(Socket, UnknownNameIsTheCallersMistake) {
  const Outcome outcome = failure_of([] { connect_tcp("no such host.invalid", 1, soon()); });
  EXPECT_EQ(outcome.code, ErrorCode::invalid_argument);
  EXPECT_THAT(outcome.text, HasSubstr("no such host.invalid"));
}

/// A listener with a full backlog: further connections hang, as to a host behind a firewall that drops packets.
class BlackHole {
 public:
  BlackHole() {
    address_.sin_family = AF_INET;
    address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address_), sizeof address_), 0);
    EXPECT_EQ(::listen(listener_.get(), 0), 0);
    address_.sin_port = htons(local_port(listener_.get()));
    for (int i = 0; i < 20; ++i) {
      try {
        filling_.push_back(connect_tcp("127.0.0.1", port(), Deadline::after(milliseconds(200))));
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::timeout);
        return;
      }
    }
    ADD_FAILURE() << "the backlog of a listener that does not accept never filled up";
  }
  std::uint16_t port() const { return ntohs(address_.sin_port); }

 private:
  UniqueFd listener_{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  sockaddr_in address_{};
  std::vector<UniqueFd> filling_;
};

TEST(Socket, ConnectingIntoABlackHoleEndsAtTheDeadline) {
  const BlackHole hole;
  const Outcome outcome =
      failure_of([&] { connect_tcp("127.0.0.1", hole.port(), Deadline::after(milliseconds(300))); });
  EXPECT_EQ(outcome.code, ErrorCode::timeout);
  EXPECT_GE(outcome.took, milliseconds(300));
  EXPECT_LT(outcome.took, std::chrono::seconds(20));
}

/// As getaddrinfo returns them for a name with these ports at 127.0.0.1.
class Addresses {
 public:
  explicit Addresses(const std::vector<std::uint16_t>& ports) : targets_(ports.size()), list_(ports.size()) {
    for (std::size_t i = 0; i < ports.size(); ++i) {
      targets_[i].sin_family = AF_INET;
      targets_[i].sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      targets_[i].sin_port = htons(ports[i]);
      list_[i].ai_family = AF_INET;
      list_[i].ai_addr = reinterpret_cast<sockaddr*>(&targets_[i]);
      list_[i].ai_addrlen = sizeof targets_[i];
      list_[i].ai_next = i + 1 < ports.size() ? &list_[i + 1] : nullptr;
    }
  }
  UniqueFd connect(Deadline deadline) const { return connect_first(list_.front(), deadline, "connecting"); }

 private:
  std::vector<sockaddr_in> targets_;
  std::vector<addrinfo> list_;
};

std::uint16_t closed_port() { return local_port(listen_tcp("127.0.0.1").get()); }

// A name with a filtered IPv6 address and a good IPv4 one: the first must not use up the deadline.
TEST(Socket, AnAddressThatKeepsQuietDoesNotHoldUpTheNext) {
  const BlackHole hole;
  const UniqueFd listener = listen_tcp("127.0.0.1");
  const auto begin = Deadline::Clock::now();
  const UniqueFd fd = Addresses({hole.port(), hole.port(), local_port(listener.get())}).connect(soon());
  EXPECT_TRUE(fd);
  EXPECT_TRUE(wait_for(listener.get(), POLLIN, soon()));
  EXPECT_LT(Deadline::Clock::now() - begin, std::chrono::seconds(5));
}

TEST(Socket, AnAddressThatRefusesIsPassedOver) {
  const UniqueFd listener = listen_tcp("127.0.0.1");
  EXPECT_TRUE(Addresses({closed_port(), closed_port(), local_port(listener.get())}).connect(soon()));
  EXPECT_EQ(failure_of([] { Addresses({closed_port(), closed_port()}).connect(soon()); }).code, ErrorCode::unavailable);
}

TEST(Socket, QuietAddressesEndAtTheDeadlineWhateverOthersSay) {
  const BlackHole hole;
  const Outcome outcome = failure_of([&] {
    Addresses({hole.port(), closed_port()}).connect(Deadline::after(milliseconds(600)));
  });
  EXPECT_EQ(outcome.code, ErrorCode::timeout);
  EXPECT_LT(outcome.took, std::chrono::seconds(20));
}

TEST(Socket, SilentPeerEndsAtTheDeadline) {
  Pair pair = connected_pair();
  Bytes buffer(10);
  const Outcome outcome = failure_of(
      [&] { receive_exactly(pair.client.get(), buffer, Deadline::after(milliseconds(150)), "reading the answer"); });
  EXPECT_EQ(outcome.code, ErrorCode::timeout);
  EXPECT_THAT(outcome.text, HasSubstr("reading the answer"));
  EXPECT_GE(outcome.took, milliseconds(150));
  EXPECT_LT(outcome.took, std::chrono::seconds(20));
}

// A deadline holds for the whole message: single bytes now and then must not extend it.
TEST(Socket, TricklingPeerEndsAtTheDeadline) {
  Pair pair = connected_pair();
  std::atomic<bool> stop{false};
  std::thread trickle([&] {
    while (!stop) {
      const char byte = 'x';
      ::send(pair.server.get(), &byte, 1, MSG_NOSIGNAL);
      std::this_thread::sleep_for(milliseconds(20));
    }
  });
  Bytes buffer(10'000);
  const Outcome outcome =
      failure_of([&] { receive_exactly(pair.client.get(), buffer, Deadline::after(milliseconds(300)), "reading"); });
  stop = true;
  trickle.join();
  EXPECT_EQ(outcome.code, ErrorCode::timeout);
  EXPECT_LT(outcome.took, std::chrono::seconds(20));
}

TEST(Socket, PeerThatDoesNotReadEndsAtTheDeadline) {
  Pair pair = connected_pair();
  const Bytes much = pattern(32'000'000);
  const Outcome outcome =
      failure_of([&] { send_all(pair.client.get(), much, Deadline::after(milliseconds(200)), "sending"); });
  EXPECT_EQ(outcome.code, ErrorCode::timeout);
  EXPECT_LT(outcome.took, std::chrono::seconds(20));
}

TEST(Socket, PeerThatClosesInTheMiddleIsLost) {
  Pair pair = connected_pair();
  const Bytes half = pattern(500);
  send_all(pair.server.get(), half, soon(), "sending");
  pair.server.reset();
  Bytes buffer(1000);
  const Outcome outcome = failure_of([&] { receive_exactly(pair.client.get(), buffer, soon(), "reading"); });
  EXPECT_EQ(outcome.code, ErrorCode::peer_lost);
  EXPECT_THAT(outcome.text, HasSubstr("closed the connection"));
  EXPECT_LT(outcome.took, std::chrono::seconds(20));
}

TEST(Socket, SendingToAPeerThatIsGoneIsAnErrorAndNoSignal) {
  Pair pair = connected_pair();
  pair.server.reset();
  const Bytes much = pattern(32'000'000);
  const Outcome outcome = failure_of([&] { send_all(pair.client.get(), much, soon(), "sending"); });
  EXPECT_EQ(outcome.code, ErrorCode::peer_lost);
  EXPECT_THAT(outcome.native, testing::AnyOf("EPIPE (32)", "ECONNRESET (104)"));
}

TEST(Socket, NothingToMoveNeverWaits) {
  Pair pair = connected_pair();
  const Deadline past{Deadline::Clock::now() - std::chrono::seconds(1)};
  EXPECT_NO_THROW(send_all(pair.client.get(), {}, past, "sending"));
  EXPECT_NO_THROW(receive_exactly(pair.client.get(), {}, past, "reading"));
}

TEST(Socket, WaitForSeesWhatIsThere) {
  Pair pair = connected_pair();
  EXPECT_FALSE(wait_for(pair.client.get(), POLLIN, Deadline::after(milliseconds(30))));
  EXPECT_TRUE(wait_for(pair.client.get(), POLLOUT, Deadline::after(milliseconds(0))));
  send_all(pair.server.get(), pattern(1), soon(), "sending");
  EXPECT_TRUE(wait_for(pair.client.get(), POLLIN, soon()));
}

}  // namespace

}  // namespace ddp::base

// Name resolution with a deadline; this file replaces the resolver.

// For one name it hangs for good, as with dead name servers or a stuck directory service.
extern "C" int getaddrinfo(const char* host, const char* service, const addrinfo* wanted, addrinfo** found) {
  const bool numeric = wanted != nullptr && (wanted->ai_flags & AI_NUMERICHOST) != 0;
  while (!numeric && host != nullptr && std::string(host) == "hanging.invalid") ::sleep(3600);
  static const auto real = reinterpret_cast<decltype(&getaddrinfo)>(::dlsym(RTLD_NEXT, "getaddrinfo"));
  return real(host, service, wanted, found);
}

namespace ddp::base {
namespace {

std::optional<Error> problem_of(const std::string& host, int flags, Deadline deadline) {
  return test::error_of([&] { resolve(host, 80, flags, "connecting to the store", deadline); });
}

TEST(AddressLookup, AResolverThatHangsIsNotWaitedFor) {
  const auto begin = Deadline::Clock::now();
  const auto error = problem_of("hanging.invalid", AI_ADDRCONFIG, Deadline::after(milliseconds(200)));
  EXPECT_LT(Deadline::Clock::now() - begin, seconds(10));
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::timeout);
  EXPECT_THAT(error->what(), HasSubstr("connecting to the store"));
  EXPECT_THAT(error->cause(), HasSubstr("'hanging.invalid'"));
  EXPECT_THAT(error->hint(), HasSubstr("resolv.conf"));
}

TEST(AddressLookup, NumericAddressesNeedNoResolver) {
  const Deadline past = Deadline::after(seconds(0));
  for (const char* host : {"127.0.0.1", "::1", "192.0.2.7"}) {
    EXPECT_FALSE(problem_of(host, AI_ADDRCONFIG, past)) << host;
    EXPECT_FALSE(problem_of(host, AI_NUMERICHOST, past)) << host;
  }
  const auto error = problem_of("hanging.invalid", AI_NUMERICHOST, past);
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::invalid_argument);
  EXPECT_THAT(error->cause(), HasSubstr("not a numeric address"));
}

TEST(AddressLookup, NamesAreResolved) {
  EXPECT_FALSE(problem_of("localhost", 0, Deadline::after(seconds(30))));
  const auto error = problem_of("no such host.invalid", 0, Deadline::after(seconds(60)));
  ASSERT_TRUE(error);
  EXPECT_EQ(error->code(), ErrorCode::invalid_argument);
}

}  // namespace

}  // namespace ddp::base
