// Whoever wants in tries all doors until the deadline, believes nobody without the secret, and says what happened at
// each.
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <ddp/error.hpp>

#include "base/socket.hpp"
#include "support/error_of.hpp"
#include "unit/launcher/control/handshake_ends.hpp"

namespace ddp::launcher::control {
namespace {

/// A listening socket whose queue is full: the kernel drops what comes, as a firewall would.
struct BlackHole {
  base::UniqueFd listening = base::listen_tcp("127.0.0.1");
  std::uint16_t port = base::local_port(listening.get());
  std::vector<base::UniqueFd> waiting;
  BlackHole() {
    ::listen(listening.get(), 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int i = 0; i < 4; ++i) {
      waiting.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
      ::connect(waiting.back().get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
    }
    std::this_thread::sleep_for(50ms);
  }
};

TEST(Connect, NamesAreResolvedAndDeadAddressesPassedOver) {
  const Secret secret = Secret::random();
  ServedListener server{secret};
  Connection connection = connect({"no.such.host.invalid", "localhost"}, server.port(), secret, soon());
  EXPECT_EQ(received(connection), 1U);
}

TEST(Connect, AServerThatDoesNotKnowTheSecretIsNotBelieved) {
  StrangeServer server{[](int fd) {
    const Greeting theirs = receive_greeting(fd);
    const Greeting ours = fresh_greeting();
    send_raw(fd, encode(ours));
    send_raw(fd, encode(kBySecret));
    receive_proof(fd);
    send_raw(fd, with_length(prove(Secret::random(), HandshakeSide::accepting, theirs, ours)));
    receive_to_end(fd);
  }};
  const Error error = failure_of({"127.0.0.1"}, server.port(), Secret::random());
  EXPECT_EQ(error.code(), ErrorCode::conflict);
  EXPECT_THAT(error.what(), HasSubstr("does not know the job's secret"));
}

TEST(Connect, AServerThatReflectsTheProofIsNotBelieved) {
  StrangeServer server{[](int fd) {
    receive_greeting(fd);
    send_raw(fd, encode(fresh_greeting()));
    send_raw(fd, encode(kBySecret));
    send_raw(fd, with_length(receive_proof(fd)));
    receive_to_end(fd);
  }};
  EXPECT_EQ(failure_of({"127.0.0.1"}, server.port(), Secret::random()).code(), ErrorCode::conflict);
}

TEST(Connect, WhatThisSideCannotProveIsSaidWithItsHint) {
  StrangeServer server{[](int fd) {
    receive_greeting(fd);
    send_raw(fd, encode(fresh_greeting()));
    send_raw(fd, encode(Announcement{.method = ProofMethod::munge}));
    EXPECT_TRUE(receive_to_end(fd).empty());
  }};
  const Provers none = [](const Announcement& announcement) -> std::shared_ptr<Prover> {
    EXPECT_EQ(announcement.method, ProofMethod::munge);
    throw Error{
        {.code = ErrorCode::conflict, .attempted = "x", .cause = "n2 has no munge", .hint = "start munged on n2"}};
  };
  const Error error = ddp::test::thrown_by([&] { connect({"127.0.0.1"}, server.port(), none, soon()); });
  EXPECT_EQ(error.code(), ErrorCode::conflict);
  EXPECT_THAT(error.what(),
              AllOf(HasSubstr("127.0.0.1:"), HasSubstr(": n2 has no munge"), HasSubstr("start munged on n2")));
}

TEST(Connect, AnUnknownMethodAndAProofThatIsTooLongAreNoCoordinator) {
  for (const int method : {0, 1}) {
    StrangeServer server{[&](int fd) {
      receive_greeting(fd);
      send_raw(fd, encode(fresh_greeting()));
      Bytes announcement = encode(kBySecret);
      announcement.front() = static_cast<std::byte>(method);
      send_raw(fd, announcement);
      if (method == 1) send_raw(fd, Bytes(2, std::byte{0xff}));
      receive_to_end(fd);
    }};
    EXPECT_EQ(failure_of({"127.0.0.1"}, server.port(), Secret::random()).code(), ErrorCode::protocol);
  }
}

TEST(Connect, AnEchoIsNoCoordinator) {
  StrangeServer server{[](int fd) {
    Bytes bytes(stream::kGreetingBytes);
    base::receive_exactly(fd, bytes, soon(), "test");
    send_raw(fd, bytes);
    receive_to_end(fd);
  }};
  const Error error = failure_of({"127.0.0.1"}, server.port(), Secret::random());
  EXPECT_EQ(error.code(), ErrorCode::protocol);
  EXPECT_THAT(error.what(), HasSubstr("echoes what it receives"));
}

TEST(Connect, AnotherServiceIsNoCoordinator) {
  StrangeServer server{[](int fd) {
    const std::string text = "SSH-2.0\r\n";
    send_raw(fd, std::as_bytes(std::span{text}));
    receive_to_end(fd);
  }};
  const Error error = failure_of({"127.0.0.1"}, server.port(), Secret::random());
  EXPECT_EQ(error.code(), ErrorCode::protocol);
  EXPECT_THAT(error.what(), HasSubstr("it is not a coordinator"));
}

TEST(Connect, ASilentServiceIsNamedAtTheDeadline) {
  StrangeServer server{[](int fd) { receive_to_end(fd); }};
  const Error error = failure_of({"127.0.0.1"}, server.port(), Secret::random(), Deadline::after(300ms));
  EXPECT_EQ(error.code(), ErrorCode::unavailable);
  EXPECT_THAT(error.what(), HasSubstr("does not answer"));
}

TEST(Connect, ADoorThatClosesNowAndThenIsTriedAgain) {
  const Secret secret = Secret::random();
  std::atomic<int> count = 0;
  StrangeServer server{[&](int fd) {
    const Greeting theirs = receive_greeting(fd);
    const Greeting ours = fresh_greeting();
    const int turn = ++count;
    if (turn == 1) return;  // before the greeting
    send_raw(fd, encode(ours));
    send_raw(fd, encode(kBySecret));
    receive_proof(fd);
    if (turn <= 3) return;  // after the proof
    send_raw(fd, with_length(prove(secret, HandshakeSide::accepting, theirs, ours)));
    receive_to_end(fd);
  }};
  EXPECT_TRUE(connect({"127.0.0.1"}, server.port(), secret, soon()).open());
  EXPECT_EQ(count, 4);
}

TEST(Connect, AClosedPortIsNamedWithItsErrorAtTheDeadline) {
  const std::uint16_t port = free_port();
  const Error error = failure_of({"127.0.0.1", "127.0.0.2"}, port, Secret::random(), Deadline::after(300ms));
  EXPECT_EQ(error.code(), ErrorCode::unavailable);
  for (const char* host : {"127.0.0.1", "127.0.0.2"}) {
    const std::string said =
        std::string(host) + ":" + std::to_string(port) + ": Connection refused [ECONNREFUSED (111)]";
    EXPECT_THAT(error.what(), HasSubstr(said));
  }
}

TEST(Connect, AListenerMayStartLater) {
  const Secret secret = Secret::random();
  const std::uint16_t port = free_port();
  auto client = std::async(std::launch::async, [&] { return connect({"127.0.0.1"}, port, secret, soon()); });
  std::this_thread::sleep_for(300ms);
  ServedListener server{secret, port};
  Connection connection = client.get();
  EXPECT_EQ(received(connection), 1U);
}

TEST(Connect, AnAddressThatSwallowsEverythingEndsAtTheDeadline) {
  BlackHole hole;
  const auto begin = std::chrono::steady_clock::now();
  const Error error = failure_of({"127.0.0.1"}, hole.port, Secret::random(), Deadline::after(500ms));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 20s);
  EXPECT_EQ(error.code(), ErrorCode::unavailable);
  EXPECT_THAT(error.what(), HasSubstr("127.0.0.1:" + std::to_string(hole.port) + ": no answer (a firewall?)"));
}

TEST(Connect, AnAddressThatSwallowsEverythingDoesNotUseUpTheTimeForOthers) {
  BlackHole hole;
  const Secret secret = Secret::random();
  // The same port at another address of this host.
  Listener listener{"127.0.0.2", hole.port, secret};
  auto client = std::async(std::launch::async, [&] {
    return connect({"127.0.0.1", "127.0.0.2"}, hole.port, secret, soon(), std::chrono::milliseconds(100));
  });
  std::vector<Connection> proven;
  while (proven.empty() && base::wait_for(listener.fds().at(0), POLLIN, soon())) proven = listener.accept_ready();
  EXPECT_EQ(client.get().peer(), "127.0.0.2:" + std::to_string(hole.port));
}

}  // namespace
}  // namespace ddp::launcher::control
