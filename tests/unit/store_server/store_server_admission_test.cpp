// A server with a secret serves clients at addresses that have shown it, and no others.
// Loopback addresses stand for hosts.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "store_client.hpp"
#include "store_server/admission_message.hpp"
#include "store_server/admission_request.hpp"
#include "store_server/store_server.hpp"

namespace ddp::store_server {
namespace {

namespace request = test::store_request;
using request::integer;
using request::text;
using std::chrono::milliseconds;
using test::StoreClient;

const std::string kHost2 = "127.0.0.2";
const std::string kHost3 = "127.0.0.3";
const std::string kSecret = make_admission_secret();
const std::string kOtherSecret = make_admission_secret();

/// For tests that wait until it expires; long enough for a client that is to be served.
constexpr milliseconds kShort{1000};

/// Admits by request only. Clients that are expected to be served do not depend on @p limit.
StoreServerOptions closed(milliseconds limit = test::kPatience) {
  return {.listen_addresses = {},
          .allowed_clients = {},
          .admission_secret = kSecret,
          .admit_loopback = false,
          .validation_limit = limit};
}

std::string request_bytes(const std::string& secret = kSecret) {
  const AdmissionMessage message = admission_message(secret);
  return {message.begin(), message.end()};
}

void admit_from(const std::string& host, std::uint16_t port) {
  StoreClient requester = StoreClient::from(host, port, false);
  EXPECT_EQ(requester.ask(request_bytes(), "\x01"), "\x01");
}

void admit_here(const StoreServer& server, const std::string& secret = kSecret) {
  request_admission("127.0.0.1", server.port(), secret, Deadline::after(test::kPatience));
}

TEST(StoreServerAdmission, ARequestAdmitsItsAddressAndNoOther) {
  const StoreServer server{closed(kShort)};
  admit_here(server);
  EXPECT_TRUE(StoreClient{server.port()}.ping());
  StoreClient outsider = StoreClient::from(kHost2, server.port());
  outsider.send(request::ping(1));
  EXPECT_TRUE(outsider.is_refused());
  admit_from(kHost2, server.port());
  EXPECT_TRUE(StoreClient::from(kHost2, server.port()).ping());
  EXPECT_TRUE(StoreClient{server.port()}.ping());
  StoreClient third = StoreClient::from(kHost3, server.port());
  third.send(request::ping(1));
  EXPECT_TRUE(third.is_refused());
}

TEST(StoreServerAdmission, IPv6AddressesAreAdmittedAlone) {
  const StoreServer server{closed(kShort)};
  try {
    request_admission("::1", server.port(), kSecret, Deadline::after(test::kPatience));
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unavailable) throw;
    GTEST_SKIP() << "no IPv6 here: " << error.what();
  }
  EXPECT_TRUE(StoreClient(server.port(), true, "::1").ping());
  EXPECT_TRUE(StoreClient(server.port(), true, "127.0.0.1").is_refused());
}

TEST(StoreServerAdmission, ClientsThatCameBeforeTheRequestAreServedAfterIt) {
  const StoreServer server{closed()};
  const std::string value(1024 * 1024, 'v');
  StoreClient complete{server.port()};
  complete.send(request::ping(7) + request::set("/k", "value"));
  StoreClient large{server.port()};
  std::thread writer([&] { large.send(request::set("/large", value) + request::get("/large")); });
  StoreClient partial{server.port(), false};
  partial.send(request::validate().substr(0, 3));
  StoreClient silent{server.port(), false};
  StoreClient elsewhere = StoreClient::from(kHost2, server.port());
  elsewhere.send(request::ping(8));
  EXPECT_TRUE(complete.is_kept_waiting());
  EXPECT_TRUE(elsewhere.is_kept_waiting(milliseconds(1)));

  admit_here(server);
  EXPECT_EQ(complete.receive(4), integer(std::uint32_t{7}));
  EXPECT_TRUE(large.receive(text(value).size()) == text(value));
  writer.join();
  partial.send(request::validate().substr(3));
  EXPECT_EQ(partial.ask(request::get("/k"), text("value")), text("value"));
  silent.send(request::validate());
  EXPECT_TRUE(silent.ping());
  EXPECT_TRUE(elsewhere.is_kept_waiting());
  admit_from(kHost2, server.port());
  EXPECT_EQ(elsewhere.receive(4), integer(std::uint32_t{8}));
}

TEST(StoreServerAdmission, RequestsOfUnadmittedClientsHaveNoEffect) {
  const StoreServer server{closed(kShort)};
  StoreClient outsider = StoreClient::from(kHost2, server.port());
  outsider.send(request::set("/k", "value"));
  EXPECT_TRUE(outsider.is_refused());
  admit_here(server);
  const std::string none = integer(std::int64_t{0});
  EXPECT_EQ(StoreClient{server.port()}.ask(request::get_num_keys(), none), none);
}

TEST(StoreServerAdmission, AWrongSecretAdmitsNothing) {
  const StoreServer server{closed(kShort)};
  std::string nearly = kSecret;
  nearly.back() = nearly.back() == '0' ? '1' : '0';
  StoreClient waiting{server.port()};
  waiting.send(request::ping(1));
  try {
    admit_here(server, nearly);
    FAIL() << "it was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::conflict);
    EXPECT_NE(error.cause().find("does not have this step's secret"), std::string::npos);
  }
  EXPECT_TRUE(waiting.is_refused());
  admit_here(server);
  EXPECT_THROW(admit_here(server, nearly), Error);
  EXPECT_TRUE(StoreClient{server.port()}.ping());  // a wrong secret revokes nothing
}

TEST(StoreServerAdmission, ARequestMayComeByteByByte) {
  const StoreServer server{closed()};
  StoreClient requester{server.port(), false};
  for (const char byte : request_bytes()) {
    EXPECT_TRUE(requester.is_kept_waiting(milliseconds(1)));
    requester.send(std::string(1, byte));
  }
  EXPECT_EQ(requester.receive(1), "\x01");
  EXPECT_TRUE(StoreClient{server.port()}.ping());
  EXPECT_TRUE(requester.is_kept_waiting());  // the client closes
}

TEST(StoreServerAdmission, APartOfARequestAdmitsNothingAndIsClosed) {
  const StoreServer server{closed(kShort)};
  std::vector<StoreClient> partial;
  for (const std::size_t size : {std::size_t{1}, std::size_t{2}, kAdmissionMessageBytes - 1}) {
    partial.emplace_back(server.port(), false);
    partial.back().send(request_bytes().substr(0, size));
  }
  StoreClient gone{server.port(), false};
  gone.send(request_bytes().substr(0, 20));
  gone.close();
  for (StoreClient& client : partial) EXPECT_TRUE(client.is_refused());
  EXPECT_TRUE(StoreClient{server.port()}.is_refused());
}

TEST(StoreServerAdmission, OtherVersionsAndProtocolsAreClosedAtOnce) {
  const StoreServer server{closed()};
  std::string other_version = request_bytes();
  other_version[1] = 2;
  for (const std::string& bytes :
       {other_version, other_version.substr(0, 2), std::string{"GET / HTTP/1.1\r\n\r\n"}, std::string{"\x01"}}) {
    StoreClient client{server.port(), false};
    client.send(bytes);
    EXPECT_TRUE(client.is_refused());
  }
}

TEST(StoreServerAdmission, HeldClientsAreClosedAtTheLimit) {
  const StoreServer server{closed(kShort)};
  const auto begin = std::chrono::steady_clock::now();
  StoreClient client{server.port()};
  StoreClient silent{server.port(), false};
  EXPECT_TRUE(client.is_refused());
  EXPECT_GE(std::chrono::steady_clock::now() - begin, kShort);
  EXPECT_TRUE(silent.is_refused());
  admit_here(server);
  EXPECT_TRUE(StoreClient{server.port()}.ping());
}

TEST(StoreServerAdmission, AdmittedClientsMayBeSilentBeyondTheLimit) {
  const StoreServer server{closed(kShort)};
  StoreClient client{server.port()};
  admit_here(server);
  EXPECT_TRUE(client.is_kept_waiting(2 * kShort));
  EXPECT_TRUE(client.ping());
}

TEST(StoreServerAdmission, HeldClientsThatDieAreForgotten) {
  StoreServerOptions options = closed();
  options.max_unadmitted = 50;
  const StoreServer server{options};
  StoreClient first{server.port()};
  first.send(request::ping(9));
  for (int round = 0; round < 40; ++round) {  // more than max_unadmitted, had the server not noticed
    for (int i = 0; i < 5; ++i) {
      StoreClient client{server.port(), i % 3 != 0};
      if (i % 2 == 0) client.reset();
      StoreClient{server.port(), false}.close();
    }
    EXPECT_THROW(admit_here(server, kOtherSecret), Error);  // it has accepted all before
    ASSERT_TRUE(first.is_kept_waiting(milliseconds(1))) << round;
  }
  admit_here(server);
  EXPECT_EQ(first.receive(4), integer(std::uint32_t{9}));
}

TEST(StoreServerAdmission, FloodsOfUnadmittedClientsEvictOnlyEachOther) {
  constexpr std::size_t kMost = 16;
  StoreServerOptions options = closed();
  options.max_unadmitted = kMost;
  const StoreServer server{options};
  admit_here(server);
  StoreClient worker{server.port()};
  StoreClient idle{server.port(), false};  // older than all others
  std::vector<StoreClient> neighbours;
  for (std::size_t i = 0; i < 2 * kMost; ++i) neighbours.emplace_back(server.port(), false);
  std::vector<StoreClient> outsiders;
  for (int i = 0; i < 300; ++i) {
    outsiders.push_back(StoreClient::from(kHost2, server.port(), i % 2 == 0));
    EXPECT_EQ(worker.ask(request::add("/n", 1), integer(std::int64_t{i + 1})), integer(std::int64_t{i + 1}));
  }
  const std::size_t kept = outsiders.size() - kMost;
  for (std::size_t i = 0; i < kept; ++i) ASSERT_TRUE(outsiders[i].is_refused()) << i;
  for (std::size_t i = kept; i < outsiders.size(); ++i)
    ASSERT_TRUE(outsiders[i].is_kept_waiting(milliseconds(10))) << i;

  admit_from(kHost2, server.port());
  for (std::size_t i = kept + 1; i < outsiders.size(); ++i) {  // one was evicted for the admission request
    if (i % 2 != 0) outsiders[i].send(request::validate());
    EXPECT_TRUE(outsiders[i].ping()) << i;
  }
  EXPECT_TRUE(outsiders[kept].is_closed());
  idle.send(request::validate());
  EXPECT_TRUE(idle.ping());
  for (StoreClient& neighbour : neighbours) {
    neighbour.send(request::validate());
    EXPECT_TRUE(neighbour.ping());
  }
}

TEST(StoreServerAdmission, RandomBytesOfUnadmittedClientsDoNoHarm) {
  const StoreServer server{closed()};
  admit_here(server);
  StoreClient worker{server.port()};
  std::mt19937 random{20240917};
  for (int i = 0; i < 300; ++i) {
    std::string bytes(1 + random() % 200, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random() % 256);
    // too short for the rest to be guessed
    if (i % 3 == 0) bytes = request_bytes().substr(0, 1 + random() % 20) + bytes;
    if (i % 3 == 1) bytes = request::validate() + bytes;
    StoreClient client = StoreClient::from(kHost2, server.port(), false);
    try {
      client.send(bytes);
    } catch (const Error&) {  // closed early
    }
    if (i % 5 == 0) {
      client.reset();
    } else {
      EXPECT_TRUE(client.is_kept_waiting(milliseconds(5)) || client.is_refused()) << i;
    }
    EXPECT_TRUE(worker.ping());
  }
  EXPECT_TRUE(StoreClient::from(kHost2, server.port()).is_kept_waiting());
}

TEST(StoreServerAdmission, LoopbackIsAdmittedByDefault) {
  StoreServerOptions options = closed();
  options.admit_loopback = true;
  const StoreServer server{options};
  EXPECT_TRUE(StoreClient{server.port()}.ping());
  EXPECT_TRUE(StoreClient::from(kHost2, server.port()).ping());
  admit_here(server);  // allowed, though not needed
  StoreClient other{server.port(), false};
  other.send("GET / HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(other.is_closed());
}

TEST(StoreServerAdmission, ListedAddressesAreAdmitted) {
  StoreServerOptions options = closed(kShort);
  options.allowed_clients = {kHost2};
  const StoreServer server{options};
  EXPECT_TRUE(StoreClient::from(kHost2, server.port()).ping());
  EXPECT_TRUE(StoreClient{server.port()}.is_refused());
  admit_here(server);
  EXPECT_TRUE(StoreClient{server.port()}.ping());
}

TEST(StoreServerAdmission, WithoutASecretLoopbackMayBeRefusedAtOnce) {
  StoreServerOptions options = closed();
  options.admission_secret.clear();
  options.allowed_clients = {kHost2};
  const StoreServer server{options};
  EXPECT_TRUE(StoreClient(server.port(), false).is_refused());
  EXPECT_TRUE(StoreClient::from(kHost2, server.port()).ping());
  StoreClient requester = StoreClient::from(kHost2, server.port(), false);
  requester.send(request_bytes());
  EXPECT_TRUE(requester.is_refused());
}

TEST(StoreServerAdmission, HeldClientsAreClosedAtTheEnd) {
  auto server = std::make_unique<StoreServer>(closed());
  StoreClient waiting{server->port()};
  StoreClient requester{server->port(), false};
  requester.send(request_bytes().substr(0, 10));
  EXPECT_TRUE(waiting.is_kept_waiting());
  const auto begin = std::chrono::steady_clock::now();
  server.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
  EXPECT_TRUE(waiting.is_refused());
  EXPECT_TRUE(requester.is_refused());
}

TEST(StoreServerAdmission, AnErrorDoesNotShowTheSecret) {
  StoreServerOptions options = closed();
  options.admission_secret = "xyzzy";
  try {
    const StoreServer server{options};
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_EQ(std::string{error.what()}.find("xyzzy"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace ddp::store_server
