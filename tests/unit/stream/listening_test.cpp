// One port for all addresses, chosen from a range. Ports are taken at loopback addresses of this process alone, so that
// other programs do not disturb.
#include "stream/listening.hpp"

#include <ddp/error.hpp>

#include "support/error_of.hpp"
#include "unit/stream/own_address.hpp"

namespace ddp::stream {
namespace {

using test::own_address;

constexpr std::string_view kClients = "clients";
constexpr std::uint16_t kFirst = 21000;  // below those that the kernel chooses
constexpr PortRange kRange{.first = kFirst, .last = kFirst + 3};

std::uint16_t port_in(PortRange range) {
  return listen_on({own_address()}, 0, {.clients = kClients, .range = range}).port;
}

std::string message_of(std::uint16_t first, std::uint16_t last, ErrorCode code) {
  const Error error = test::thrown_by(
      [&] { listen_on({own_address()}, 0, {.clients = kClients, .range = PortRange{.first = first, .last = last}}); });
  EXPECT_EQ(error.code(), code);
  return error.what();
}

TEST(PortRange, ThePortIsInIt) {
  for (int i = 0; i < 20; ++i) {
    const std::uint16_t port = port_in(kRange);
    EXPECT_GE(port, kRange.first);
    EXPECT_LE(port, kRange.last);
  }
  EXPECT_EQ(port_in({.first = kFirst, .last = kFirst}), kFirst);
  EXPECT_EQ(port_in({.first = 65535, .last = 65535}), 65535);
}

TEST(PortRange, ItBeginsAnywhere) {
  std::set<std::uint16_t> seen;
  for (int i = 0; i < 100; ++i) seen.insert(port_in(kRange));
  EXPECT_EQ(seen.size(), 4U);  // one of them stays away in one of 10^12 runs
}

TEST(PortRange, TheOneThatIsFreeIsFound) {
  for (std::uint16_t free = kRange.first; free <= kRange.last; ++free) {
    std::vector<Listeners> others;
    for (std::uint16_t port = kRange.first; port <= kRange.last; ++port) {
      if (port != free) others.push_back(listen_on({own_address()}, port, {.clients = kClients}));
    }
    EXPECT_EQ(port_in(kRange), free);
  }
}

TEST(PortRange, ItMustBeFreeOnAllAddresses) {
  const Listeners other = listen_on({own_address(2)}, kFirst, {.clients = kClients});
  for (int i = 0; i < 20; ++i) {
    const Listeners both = listen_on({own_address(1), own_address(2)}, 0,
                                     {.clients = kClients, .range = PortRange{.first = kFirst, .last = kFirst + 1}});
    EXPECT_EQ(both.port, kFirst + 1);
    EXPECT_EQ(both.sockets.size(), 2U);
  }
}

TEST(PortRange, AFullOneIsAnErrorThatNamesIt) {
  std::vector<Listeners> others;
  for (std::uint16_t port = kRange.first; port <= kRange.last; ++port)
    others.push_back(listen_on({own_address()}, port, {.clients = kClients}));
  const std::string message = message_of(kRange.first, kRange.last, ErrorCode::system);
  EXPECT_NE(message.find("from 21000 to 21003"), std::string::npos) << message;
  EXPECT_NE(message.find("EADDRINUSE"), std::string::npos) << message;
  EXPECT_NE(message.find(own_address()), std::string::npos) << message;
  others.pop_back();
  EXPECT_EQ(port_in(kRange), kRange.last);
}

TEST(PortRange, OneWithoutPortsIsAnError) {
  EXPECT_NE(message_of(21003, 21000, ErrorCode::invalid_argument).find("'21003-21000'"), std::string::npos);
  EXPECT_NE(message_of(0, 21000, ErrorCode::invalid_argument).find("'0-21000'"), std::string::npos);
}

TEST(PortRange, AGivenPortGoesFirst) {
  EXPECT_EQ(listen_on({own_address()}, kFirst + 7, {.clients = kClients, .range = kRange}).port, kFirst + 7);
}

TEST(Listening, NamesMayHaveAddressesThatAreNotThisHosts) {
  const Listeners some = listen_on({own_address(), "192.0.2.1"}, 0, {.clients = kClients, .names = true});
  EXPECT_EQ(some.sockets.size(), 1U);  // TEST-NET-1
  EXPECT_THROW(listen_on({"192.0.2.1"}, 0, {.clients = kClients, .names = true}), Error);
  EXPECT_THROW(listen_on({own_address(), "192.0.2.1"}, 0, {.clients = kClients}), Error);
  EXPECT_THROW(listen_on({"localhost"}, 0, {.clients = kClients}), Error);
}

}  // namespace
}  // namespace ddp::stream
