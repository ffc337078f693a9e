// The server over real sockets: many clients, all ways to listen, and its end.
#include "store_server/store_server.hpp"

#include "refusal_lines.hpp"
#include "store_client.hpp"
#include "support/error_of.hpp"
#include "support/outer_address.hpp"
#include "unit/stream/own_address.hpp"

namespace ddp::store_server {
namespace {

namespace request = test::store_request;
using request::integer;
using request::kStop;
using request::text;
using test::StoreClient;

TEST(StoreServer, ClientsShareOneKeySpace) {
  const StoreServer server{{}};
  StoreClient one{server.port()};
  StoreClient two{server.port()};
  EXPECT_EQ(one.ask(request::add("/n", 1), integer(std::int64_t{1})), integer(std::int64_t{1}));
  EXPECT_EQ(two.ask(request::add("/n", 1), integer(std::int64_t{2})), integer(std::int64_t{2}));
  two.send(request::wait({"/k"}));
  one.send(request::set("/k", "value"));
  EXPECT_EQ(two.receive(1), kStop);
  EXPECT_EQ(two.ask(request::get("/k"), text("value")), text("value"));
}

TEST(StoreServer, ItsPortIsInTheRange) {
  const stream::PortRange range{.first = 21000, .last = 21003};  // below those that the kernel chooses
  const StoreServer server{{.listen_addresses = {test::own_address()}, .port_range = range}};
  EXPECT_GE(server.port(), range.first);
  EXPECT_LE(server.port(), range.last);
  EXPECT_THROW(StoreServer({.listen_addresses = {test::own_address()},
                            .port_range = stream::PortRange{.first = server.port(), .last = server.port()}}),
               Error);
}

TEST(StoreServer, EachServerStartsEmpty) {
  for (int i = 0; i < 2; ++i) {
    const StoreServer server{{}};
    StoreClient client{server.port()};
    const std::string none = integer(std::int64_t{0});
    EXPECT_EQ(client.ask(request::get_num_keys(), none), none);
    client.send(request::set("/k", "value"));
    EXPECT_TRUE(client.ping());
  }
}

TEST(StoreServer, RequestsMayComeInOneGoOrByteByByte) {
  const StoreServer server{{}};
  StoreClient client{server.port()};
  std::string requests;
  std::string expected;
  for (int i = 0; i < 20'000; ++i) {
    requests += request::set("/" + std::to_string(i), std::to_string(i)) + request::get("/" + std::to_string(i));
    expected += text(std::to_string(i));
  }
  std::thread writer([&] { client.send(requests); });
  EXPECT_EQ(client.receive(expected.size()), expected);
  writer.join();
  for (const char byte : request::get("/7")) client.send(std::string(1, byte));
  EXPECT_EQ(client.receive(text("7").size()), text("7"));
}

TEST(StoreServer, LargestValuesComeAndGo) {
  const StoreServer server{{}};
  StoreClient client{server.port()};
  std::string value(8 * 1024 * 1024, 'v');
  for (std::size_t i = 0; i < value.size(); i += 997) value[i] = static_cast<char>(i);
  std::thread writer([&] { client.send(request::set("/k", value) + request::multi_get({"/k", "/k", "/k"})); });
  const std::string expected = text(value) + text(value) + text(value);
  EXPECT_TRUE(client.receive(expected.size()) == expected);
  writer.join();
}

TEST(StoreServer, TwoHundredClientsMeet) {
  const StoreServer server{{}};
  constexpr std::int64_t kClients = 200;
  std::vector<std::unique_ptr<StoreClient>> clients;
  for (std::int64_t i = 0; i < kClients; ++i) clients.push_back(std::make_unique<StoreClient>(server.port()));
  for (int round = 0; round < 5; ++round) {
    const std::string done = "/done" + std::to_string(round);
    for (auto& client : clients) client->send(request::add("/n", 1) + request::wait({done}));
    std::vector<bool> seen(static_cast<std::size_t>(kClients));
    for (auto& client : clients) {
      const std::string answer = client->receive(sizeof(std::int64_t));
      std::int64_t count = 0;
      std::memcpy(&count, answer.data(), sizeof count);
      count -= round * kClients;
      ASSERT_TRUE(count >= 1 && count <= kClients) << count;
      seen[static_cast<std::size_t>(count - 1)] = true;
    }
    EXPECT_EQ(std::count(seen.begin(), seen.end(), true), kClients);
    clients[static_cast<std::size_t>(round)]->send(request::set(done, "1"));
    for (auto& client : clients) EXPECT_EQ(client->receive(1), kStop);
  }
}

TEST(StoreServer, ConcurrentCountsAreNotLost) {
  const StoreServer server{{}};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      StoreClient client{server.port()};
      for (int k = 0; k < 500; ++k) client.ask(request::add("/n", 1), integer(std::int64_t{0}));
    });
  }
  for (std::thread& thread : threads) thread.join();
  StoreClient client{server.port()};
  EXPECT_EQ(client.ask(request::get("/n"), text("4000")), text("4000"));
}

TEST(StoreServer, WaitingClientsAreClosedAtTheEnd) {
  auto server = std::make_unique<StoreServer>(StoreServerOptions{});
  const std::uint16_t port = server->port();
  StoreClient waiting{port};
  StoreClient idle{port};
  StoreClient unknown{port, false};
  EXPECT_TRUE(waiting.ping());
  waiting.send(request::wait({"/never"}));
  EXPECT_TRUE(idle.ping());
  const auto begin = std::chrono::steady_clock::now();
  server.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
  EXPECT_TRUE(waiting.is_closed());
  EXPECT_TRUE(idle.is_closed());
  EXPECT_TRUE(unknown.is_closed());
  EXPECT_THROW(StoreClient{port}, Error);
}

TEST(StoreServer, ListensEverywhereByDefault) {
  const StoreServer server{{}};
  EXPECT_TRUE(StoreClient(server.port(), true, "127.0.0.1").ping());
  try {
    EXPECT_TRUE(StoreClient(server.port(), true, "::1").ping());
  } catch (const Error& error) {
    GTEST_SKIP() << "no IPv6 here: " << error.what();
  }
}

TEST(StoreServer, SeveralAddressesShareOnePort) {
  const StoreServer server{{.listen_addresses = {"127.0.0.1", "127.0.0.2", "127.0.0.1"}}};
  EXPECT_TRUE(StoreClient(server.port(), true, "127.0.0.1").ping());
  EXPECT_TRUE(StoreClient(server.port(), true, "127.0.0.2").ping());
  EXPECT_THROW(StoreClient(server.port(), true, "127.0.0.3"), Error);
}

TEST(StoreServer, APortThatIsTakenIsAnErrorThatNamesIt) {
  const StoreServer first{{}};
  const Error error =
      test::thrown_by([&] { const StoreServer second{{.listen_addresses = {"127.0.0.1"}, .port = first.port()}}; });
  EXPECT_EQ(error.code(), ErrorCode::system);
  EXPECT_EQ(error.native(), "EADDRINUSE (98)");
  EXPECT_NE(error.attempted().find("127.0.0.1 port " + std::to_string(first.port())), std::string::npos);
  EXPECT_THROW(StoreServer({.port = first.port()}), Error);
}

// The connection that the first server closes stays with the port (TIME_WAIT). The port is not one of those that the
// kernel gives to others.
TEST(StoreServer, AGivenPortIsFreeAgainAtOnce) {
  const std::string address = test::own_address();
  constexpr std::uint16_t kPort = 21100;
  const StoreServerOptions options{.listen_addresses = {address}, .port = kPort};
  auto server = std::make_unique<StoreServer>(options);
  StoreClient client{kPort, true, address};
  EXPECT_TRUE(client.ping());
  server.reset();
  EXPECT_TRUE(client.is_closed());
  client.close();
  const StoreServer again{options};
  EXPECT_EQ(again.port(), kPort);
  EXPECT_TRUE(StoreClient(kPort, true, address).ping());
}

TEST(StoreServer, AddressesMustBeNumericAndOfThisHost) {
  for (const std::string address : {"localhost", "", "127.0.0.1:80"}) {
    EXPECT_THROW(StoreServer({.listen_addresses = {address}}), Error) << address;
  }
  const Error error = test::thrown_by([&] {
    const StoreServer server{{.listen_addresses = {"127.0.0.1", "203.0.113.7"}}};
  });
  EXPECT_EQ(error.code(), ErrorCode::system);
  EXPECT_NE(error.attempted().find("203.0.113.7"), std::string::npos) << error.what();
}

TEST(StoreServer, OtherHostsAreTurnedAwayWhereThereIsOne) {
  const StoreServer server{{.is_own_host = [](const PeerAddress& address) { return address.text() != "127.0.0.2"; }}};
  EXPECT_TRUE(StoreClient::from("127.0.0.2", server.port(), false).is_refused());
  EXPECT_TRUE(StoreClient(server.port()).ping());
  EXPECT_NE(test::next_refusal(server).find("refused a connection from 127.0.0.2:"), std::string::npos);
  const std::string outer = test::outer_address();
  if (!outer.empty()) {
    EXPECT_TRUE(StoreClient(server.port(), true, outer).ping());
  }
}

}  // namespace
}  // namespace ddp::store_server
