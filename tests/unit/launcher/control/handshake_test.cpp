// Who knows the secret gets in, whatever crowds the door; nobody else does, and learns nothing.
#include "control/handshake.hpp"

#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <ddp/error.hpp>

#include "base/socket.hpp"
#include "control/handshake.hpp"
#include "support/error_of.hpp"
#include "support/no_descriptors_left.hpp"
#include "topology/inventory/network_facts.hpp"
#include "unit/launcher/control/handshake_ends.hpp"

namespace ddp::launcher::control {
namespace {

TEST(Handshake, TheRightSecretOpensTheDoorBothWays) {
  const Secret secret = Secret::random();
  ServedListener server{secret};
  Connection connection = connect({"127.0.0.1"}, server.port(), Secret::from_hex(secret.to_hex()), soon());
  EXPECT_EQ(connection.peer(), "127.0.0.1:" + std::to_string(server.port()));
  EXPECT_EQ(received(connection), 1U);
  EXPECT_EQ(server.proven(), 1);
}

TEST(Handshake, AListenerOnAllAddressesTakesIpv4Peers) {
  const Secret secret = Secret::random();
  Listener listener{"", 0, secret};
  auto client = std::async(std::launch::async, [&] { return connect({"127.0.0.1"}, listener.port(), secret, soon()); });
  std::vector<Connection> proven;
  while (proven.empty() && base::wait_for(listener.fds().at(0), POLLIN, soon())) proven = listener.accept_ready();
  ASSERT_EQ(proven.size(), 1U);
  EXPECT_THAT(proven[0].peer(), testing::StartsWith("127.0.0.1:"));  // not ::ffff:127.0.0.1
  EXPECT_TRUE(client.get().open());
}

TEST(Handshake, AWrongSecretIsAConflict) {
  ServedListener server{Secret::random()};
  const Error error = failure_of({"127.0.0.1"}, server.port(), Secret::random());
  EXPECT_EQ(error.code(), ErrorCode::conflict);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("does not accept this node's secret"), HasSubstr("127.0.0.1:")));
  EXPECT_EQ(server.proven(), 0);
}

// Two handshakes with the same listener, which give each other's messages back: the listener proves itself to nobody
// that has not authenticated first, and takes no proof of its own side.
TEST(Handshake, TheListenersOwnMessagesDoNotOpenIt) {
  ServedListener server{Secret::random()};
  const base::UniqueFd fd = raw(server.port());
  send_raw(fd.get(), encode(fresh_greeting()));
  const Greeting theirs = receive_greeting(fd.get());
  const base::UniqueFd second = raw(server.port());
  send_raw(second.get(), encode(theirs));
  receive_greeting(second.get());
  receive_announcement(second.get());
  send_raw(second.get(), with_length(Bytes(32)));
  EXPECT_TRUE(receive_to_end(second.get()).empty());  // not a byte to work with
  EXPECT_EQ(server.proven(), 0);
}

TEST(Handshake, AProofThatWasHeardBeforeDoesNotOpenTheDoor) {
  const Secret secret = Secret::random();
  ServedListener server{secret};
  const Greeting ours = fresh_greeting();
  Bytes proof;
  for (const bool replay : {false, true}) {
    const base::UniqueFd fd = raw(server.port());
    send_raw(fd.get(), encode(ours));
    const Greeting theirs = receive_greeting(fd.get());
    EXPECT_EQ(receive_announcement(fd.get()), kBySecret);
    if (!replay) proof = prove(secret, HandshakeSide::connecting, ours, theirs);
    send_raw(fd.get(), with_length(proof));
    if (replay) {
      EXPECT_TRUE(receive_to_end(fd.get()).empty());
    } else {
      EXPECT_TRUE(proves(receive_proof(fd.get()), secret, HandshakeSide::accepting, ours, theirs));
    }
  }
  // its thread counts when it has looked at all that has come
  for (const Deadline limit = soon(); server.proven() == 0 && !limit.expired();) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(server.proven(), 1);
}

TEST(Handshake, StrangersGetNoAnswer) {
  ServedListener server{Secret::random()};
  Bytes random(4096);
  for (std::size_t i = 0; i < random.size(); ++i) random[i] = static_cast<std::byte>(i * i * 31 + 17);
  const std::string http = "GET / HTTP/1.1\r\nHost: n1\r\n\r\n";
  const std::string zeros(1000, '\0');
  for (const auto& bytes : {std::span<const std::byte>{random}, std::as_bytes(std::span{http}),
                            std::as_bytes(std::span{zeros}), std::as_bytes(std::span{http}).first(1)}) {
    const base::UniqueFd fd = raw(server.port());
    send_raw(fd.get(), bytes);
    EXPECT_TRUE(receive_to_end(fd.get()).empty());
  }
  EXPECT_EQ(server.proven(), 0);
}

TEST(Handshake, AnotherProtocolVersionIsNamedOnBothSides) {
  ServedListener listener{Secret::random()};
  const base::UniqueFd fd = raw(listener.port());
  Greeting newer = fresh_greeting();
  newer.version = kProtocolVersion + 1;
  testing::internal::CaptureStderr();
  send_raw(fd.get(), encode(newer));
  const Bytes answer = receive_to_end(fd.get());
  EXPECT_EQ(parse_greeting(kProtocol, answer).value().version, static_cast<std::uint32_t>(kProtocolVersion));
  EXPECT_EQ(answer.size(), stream::kGreetingBytes);  // the greeting and nothing else
  for (int i = 0; i < 100; ++i) std::this_thread::sleep_for(1ms);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("version " + std::to_string(kProtocolVersion + 1)));

  StrangeServer server{[&](int client) {
    receive_greeting(client);
    send_raw(client, encode(newer));
    receive_to_end(client);
  }};
  const Error error = failure_of({"127.0.0.1"}, server.port(), Secret::random());
  EXPECT_EQ(error.code(), ErrorCode::protocol);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("version " + std::to_string(kProtocolVersion + 1)),
                                  HasSubstr("version " + std::to_string(kProtocolVersion) + ";")));
}

TEST(Handshake, WithoutDescriptorsTheOneThatWaitsIsReported) {
  const Secret secret = Secret::random();
  Listener listener{"127.0.0.1", 0, secret};
  auto client = std::async(std::launch::async, [&] { return connect({"127.0.0.1"}, listener.port(), secret, soon()); });
  EXPECT_TRUE(base::wait_for(listener.fds().at(0), POLLIN, soon()));
  testing::internal::CaptureStderr();
  {
    const ddp::test::NoDescriptorsLeft none_left;
    listener.accept_ready();
  }
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("[EMFILE (24)]; it will be tried again"));
  std::vector<Connection> proven;
  const Deadline limit = soon();
  while (proven.empty() && !limit.expired()) {
    base::wait_for(listener.fds().at(0), POLLIN, limit);
    proven = listener.accept_ready();
  }
  EXPECT_EQ(proven.size(), 1U);
  EXPECT_TRUE(client.get().open());
}

/// Room for crowds in one process.
void allow_many_descriptors() {
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 8192);
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

TEST(Handshake, ManySilentConnectionsDoNotKeepTheGoodOneOut) {
  allow_many_descriptors();
  const Secret secret = Secret::random();
  ServedListener server{secret};
  std::vector<base::UniqueFd> silent;
  for (std::size_t i = 0; i < kMaxPending + 50; ++i) silent.push_back(raw(server.port()));
  Connection connection = connect({"127.0.0.1"}, server.port(), secret, soon());
  EXPECT_EQ(received(connection), 1U);
  EXPECT_TRUE(receive_to_end(silent.front().get()).empty());  // the oldest had to go
}

TEST(Listener, AsManyMayBeUnprovenAsAgentsAreExpected) {
  allow_many_descriptors();
  const Secret secret = Secret::random();
  Listener listener{"127.0.0.1", 0, secret, 60s, 60s};
  listener.expect(kMaxPending + 200);
  std::vector<base::UniqueFd> slow;
  for (std::size_t i = 0; i < kMaxPending + 100; ++i) {
    slow.push_back(raw(listener.port()));
    listener.accept_ready();
  }
  const EphemeralKey key;
  send_raw(slow.front().get(), encode(greeting_of(key)));
  auto answer = std::async(std::launch::async, [&] { return receive_greeting(slow.front().get()); });
  while (answer.wait_for(1ms) != std::future_status::ready) listener.accept_ready();
  EXPECT_EQ(answer.get().version, static_cast<std::uint32_t>(kProtocolVersion));  // the oldest is still heard
}

/// An address of this host that counts as another source than its loopback addresses; empty: there is none.
std::string other_source() {
  for (const topology::InterfaceFact& fact : topology::read_usable_interfaces()) {
    if (fact.interface.kind == InterfaceKind::loopback) continue;
    for (const InterfaceAddress& address : fact.interface.addresses) {
      if (!address.ipv6) return address.address;
    }
  }
  return {};
}

// It takes longer than the strangers take to open all the connections that there is room for.
TEST(Handshake, ACrowdFromOneSourceDoesNotDriveOutOneOfAnother) {
  allow_many_descriptors();
  const std::string source = other_source();
  if (source.empty()) GTEST_SKIP() << "this host has only loopback addresses";
  const Secret secret = Secret::random();
  Listener listener{"", 0, secret};
  const std::uint16_t port = listener.port();
  const base::UniqueFd good = base::connect_tcp(source, port, soon());
  const EphemeralKey key;
  send_raw(good.get(), encode(greeting_of(key)));
  std::vector<base::UniqueFd> crowd;
  const auto serve = [&] {
    std::vector<Connection> proven;
    for (int i = 0; i < 20 && proven.empty(); ++i) proven = listener.accept_ready();
    return proven.size();
  };
  for (std::size_t i = 0; i < 3 * kMaxPending; ++i) {
    crowd.push_back(base::connect_tcp("127.0.0.1", port, soon()));
    if (i % 64 == 0) serve();
  }
  serve();
  const Greeting theirs = receive_greeting(good.get());
  receive_announcement(good.get());
  send_raw(good.get(), with_length(prove(secret, HandshakeSide::connecting, greeting_of(key), theirs)));
  std::size_t proven = 0;
  for (const Deadline limit = soon(); proven == 0 && !limit.expired();) proven = serve();
  EXPECT_EQ(proven, 1U);
}

TEST(Handshake, WhatFollowsIsEncrypted) {
  const Secret secret = Secret::random();
  Bytes heard;
  Listener listener{"127.0.0.1", 0, secret};
  // A stranger between the two, who passes everything on and listens.
  StrangeServer between{[&](int client) {
    const base::UniqueFd server = raw(listener.port());
    for (;;) {
      std::array<pollfd, 2> ends{pollfd{.fd = client, .events = POLLIN, .revents = 0},
                                 pollfd{.fd = server.get(), .events = POLLIN, .revents = 0}};
      if (::poll(ends.data(), ends.size(), 60'000) <= 0) return;
      for (const std::size_t i : {0U, 1U}) {
        if (ends.at(i).revents == 0) continue;
        std::array<std::byte, 4096> chunk;
        const ssize_t size = ::recv(ends.at(i).fd, chunk.data(), chunk.size(), MSG_DONTWAIT);
        if (size <= 0) return;
        const auto bytes = std::span{chunk}.first(static_cast<std::size_t>(size));
        heard.insert(heard.end(), bytes.begin(), bytes.end());
        send_raw(ends.at(1 - i).fd, bytes);
      }
    }
  }};
  const std::string told = "a name that nobody else may hear";
  {
    auto client =
        std::async(std::launch::async, [&] { return connect({"127.0.0.1"}, between.port(), secret, soon()); });
    std::vector<Connection> proven;
    while (proven.empty() && base::wait_for(listener.fds().at(0), POLLIN, soon())) proven = listener.accept_ready();
    Connection connection = client.get();
    connection.send(PrepareAttempt{.name_space = told});
    ASSERT_TRUE(base::wait_for(proven.at(0).fd(), POLLIN, soon()));
    const std::vector<Message> messages = proven.at(0).receive();
    ASSERT_EQ(messages.size(), 1U);
    EXPECT_EQ(std::get<PrepareAttempt>(messages[0]).name_space, told);
  }
  const auto text = std::as_bytes(std::span{told});
  EXPECT_GT(heard.size(), told.size());
  EXPECT_EQ(std::search(heard.begin(), heard.end(), text.begin(), text.end()), heard.end());
}

TEST(Handshake, ACrowdOfGoodOnesGetsInWhole) {
  const Secret secret = Secret::random();
  ServedListener server{secret};
  std::vector<std::future<Connection>> clients;
  for (int i = 0; i < 150; ++i) {
    clients.push_back(
        std::async(std::launch::async, [&] { return connect({"127.0.0.1"}, server.port(), secret, soon()); }));
  }
  for (auto& client : clients) {
    Connection connection = client.get();
    EXPECT_EQ(received(connection), 1U);
  }
  EXPECT_EQ(server.proven(), 150);
}

TEST(Listener, APortInUseIsExplained) {
  const Secret secret = Secret::random();
  const Listener first{"127.0.0.1", 0, secret};
  const Error error = ddp::test::thrown_by([&] { const Listener second{"127.0.0.1", first.port(), secret}; });
  EXPECT_EQ(error.code(), ErrorCode::system);
  EXPECT_THAT(error.what(), AllOf(HasSubstr("EADDRINUSE"), HasSubstr("another program on this host uses the port")));
  EXPECT_THROW((Listener{"192.0.2.1", 0, secret}), Error);  // not this host's (TEST-NET-1)
  EXPECT_THROW((Listener{"no.such.host.invalid", 0, secret}), Error);
}

TEST(Listener, ListensAtTheGivenAddressesAlone) {
  const Secret secret = Secret::random();
  Listener listener{{"127.0.0.1", "127.0.0.2", "192.0.2.1"}, 0, job_secret_prover(secret)};
  const std::string port = std::to_string(listener.port());
  EXPECT_THAT(listener.addresses(), testing::ElementsAre("127.0.0.1:" + port, "127.0.0.2:" + port));
  for (const char* address : {"127.0.0.1", "127.0.0.2"})
    EXPECT_TRUE(base::connect_tcp(address, listener.port(), soon()));
  EXPECT_THROW(base::connect_tcp("127.0.0.3", listener.port(), soon()), Error);
}

TEST(Listener, APortInUseIsNoReasonToTryIpv4Only) {
  const Secret secret = Secret::random();
  const Listener first{"", 0, secret};
  EXPECT_THROW((Listener{"", first.port(), secret}), Error);
}

TEST(Listener, IsGoneWhenClosed) {
  const Secret secret = Secret::random();
  Listener listener{"127.0.0.1", 0, secret};
  const std::uint16_t port = listener.port();
  const base::UniqueFd unproven = raw(port);
  ASSERT_TRUE(base::wait_for(listener.fds().at(0), POLLIN, soon()));
  listener.accept_ready();
  listener.close();
  EXPECT_TRUE(listener.fds().empty());
  EXPECT_TRUE(listener.accept_ready().empty());
  EXPECT_TRUE(receive_to_end(unproven.get()).empty());
  const Listener next{"127.0.0.1", port, secret};  // the port is free at once
  listener.close();
}

}  // namespace
}  // namespace ddp::launcher::control
