// Whose a connection of this host is, by sock_diag and by /proc/net/tcp.
#include "store_server/socket_owner.hpp"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <ddp/error.hpp>

#include "base/socket.hpp"
#include "other_user.hpp"
#include "store_client.hpp"

namespace ddp::store_server {
namespace {

using Kind = SocketOwner::Kind;

struct Pair {
  base::UniqueFd client;
  base::UniqueFd accepted;
};

/// @p from: an address at which a listener at @p at is reached.
Pair connect_pair(const std::string& at, const std::string& from) {
  const base::UniqueFd listener = base::listen_tcp(at);
  Pair pair;
  pair.client = base::connect_tcp(from, base::local_port(listener.get()), Deadline::after(test::kPatience));
  if (!base::wait_for(listener.get(), POLLIN, Deadline::after(test::kPatience))) return pair;
  pair.accepted.reset(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  return pair;
}

struct SocketOwnerTest : testing::TestWithParam<bool> {
  SocketOwners owners_{GetParam()};
  SocketOwner owner_of(int fd) { return owners_.owner_of(*Endpoint::own(fd), *Endpoint::other(fd)); }
};
INSTANTIATE_TEST_SUITE_P(Sources, SocketOwnerTest, testing::Bool(),
                         [](const auto& parameter) { return parameter.param ? "sock_diag" : "proc_net_tcp"; });

TEST_P(SocketOwnerTest, OwnConnectionsAreOurs) {
  for (const auto& [at, from] : {std::pair{"127.0.0.1", "127.0.0.1"}, {"::", "127.0.0.1"}, {"::1", "::1"}}) {
    Pair pair;
    try {
      pair = connect_pair(at, from);
    } catch (const Error&) {
      continue;  // no IPv6 here
    }
    EXPECT_EQ(owner_of(pair.client.get()).kind, Kind::ours) << at;
    EXPECT_EQ(owner_of(pair.client.get()).uid, ::geteuid());
    EXPECT_EQ(owner_of(pair.accepted.get()).kind, Kind::ours) << at;
  }
}

TEST_P(SocketOwnerTest, WhatIsNotThereIsNobodys) {
  Pair pair = connect_pair("127.0.0.1", "127.0.0.1");
  const Endpoint own = *Endpoint::own(pair.client.get());
  const Endpoint other = *Endpoint::other(pair.client.get());
  EXPECT_EQ(owners_.owner_of(own, {.address = other.address, .port = 1}).kind, Kind::none);
  EXPECT_EQ(owners_.owner_of({.address = *PeerAddress::parse("127.0.0.9"), .port = own.port}, other).kind, Kind::none);
  // a listener, which the kernel finds where there is no connection
  const base::UniqueFd listener = base::listen_tcp("127.0.0.1");
  EXPECT_EQ(owners_.owner_of(*Endpoint::own(listener.get()), other).kind, Kind::none);
  // closed, but not gone: the kernel says that it is root's
  pair.client.reset();
  EXPECT_EQ(owners_.owner_of(own, other).kind, Kind::none);
}

TEST_P(SocketOwnerTest, AnotherUsersAreTold) {
  if (!test::can_be_other_user()) GTEST_SKIP() << "needs root";
  const base::UniqueFd listener = base::listen_tcp("127.0.0.1");
  const std::uint16_t port = base::local_port(listener.get());
  const pid_t child = ::fork();
  if (child == 0) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (::setresuid(test::kOtherUser, test::kOtherUser, test::kOtherUser) != 0) ::_exit(2);
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    if (::connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) ::_exit(3);
    char byte = 0;
    ::_exit(::recv(fd, &byte, 1, 0) == 0 ? 0 : 1);  // until the test has seen it
  }
  ASSERT_TRUE(base::wait_for(listener.get(), POLLIN, Deadline::after(test::kPatience)));
  base::UniqueFd accepted{::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC)};
  const SocketOwner owner = owners_.owner_of(*Endpoint::other(accepted.get()), *Endpoint::own(accepted.get()));
  EXPECT_EQ(owner.kind, Kind::other_user);
  EXPECT_EQ(owner.uid, test::kOtherUser);
  EXPECT_NE(owner.reason().find("uid 65534"), std::string::npos);
  accepted.reset();
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace ddp::store_server
