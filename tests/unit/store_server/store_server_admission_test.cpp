// The server serves only its own user: the kernel identifies clients on its host, witnesses those on other hosts.
// 127.0.0.1 stands for another host, where this process is; 127.0.0.2 for the server's own; 127.0.0.3 for a stranger's.
#include <sys/socket.h>

#include "other_user.hpp"
#include "refusal_lines.hpp"
#include "store_client.hpp"
#include "store_server/store_server.hpp"
#include "store_server/witness.hpp"
#include "store_server/witness_protocol.hpp"
#include "support/error_of.hpp"
#include "support/outer_address.hpp"

namespace ddp::store_server {
namespace {

namespace request = test::store_request;
using request::integer;
using test::next_refusal;
using test::StoreClient;

const std::string kOwnHost = "127.0.0.2";
const std::string kStranger = "127.0.0.3";

/// For tests that wait until it expires; long enough to serve a client.
constexpr milliseconds kShort{1000};

StoreServerOptions several_hosts(milliseconds limit = test::kPatience) {
  return {.key = StoreKey::make(), .validation_limit = limit, .is_own_host = [](const PeerAddress& address) {
            return address.text() == kOwnHost;
          }};
}

std::unique_ptr<Witness> witness_of(const StoreServerOptions& options, const StoreServer& server) {
  return std::make_unique<Witness>("127.0.0.1", server.port(), *options.key, Deadline::after(test::kPatience));
}

Deadline soon() { return Deadline::after(test::kPatience); }

/// A witness that answers as the test wants.
class FalseWitness {
 public:
  FalseWitness(const StoreServerOptions& options, const StoreServer& server)
      : client_(server.port(), false), end_(client_.fd(), *options.key, soon(), "being a witness in a test") {}
  Welcome state(const Statement& statement) {
    end_.send(statement, soon());
    return end_.receive<Welcome>(soon());
  }
  /// Of this host, resident.
  Welcome state() {
    const Endpoint own = *Endpoint::own(client_.fd());
    return state({.host = random_bytes(), .own = own, .addresses = {own.address}});
  }
  Question question() { return end_.receive<Question>(soon()); }
  void answer(std::uint64_t id, SocketOwner owner) { end_.send(Answer{.id = id, .owner = owner}, soon()); }
  StoreClient& client() { return client_; }

 private:
  StoreClient client_;
  WitnessEnd end_;
};

/// The first message of a witness that does not know the key.
std::string greeting() {
  const Bytes bytes = stream::encode(
      kWitnessProtocol, stream::Greeting{.version = kWitnessProtocol.version, .key = stream::random_bytes()});
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}
constexpr std::size_t kProofBytes = stream::kProofHeaderBytes + 32;
constexpr std::size_t kChallengeBytes = stream::kGreetingBytes + stream::kAnnouncementBytes + kProofBytes;

TEST(StoreServerAdmission, AnotherUserOfTheHostIsRefusedByName) {
  if (!test::can_be_other_user()) GTEST_SKIP() << "needs root";
  const StoreServer server{{}};
  StoreClient ours{server.port()};
  EXPECT_TRUE(test::other_user_is_refused(server.port()));
  const std::string line = next_refusal(server);
  EXPECT_NE(line.find("refused a connection from 127.0.0.1:"), std::string::npos) << line;
  EXPECT_NE(line.find("belongs to uid 65534"), std::string::npos) << line;
  EXPECT_TRUE(ours.ping());
}

TEST(StoreServerAdmission, AnotherUserOfAnotherHostIsRefusedByItsWitness) {
  if (!test::can_be_other_user()) GTEST_SKIP() << "needs root";
  const StoreServerOptions options = several_hosts();
  const StoreServer server{options};
  const auto witness = witness_of(options, server);
  EXPECT_TRUE(StoreClient{server.port()}.ping());
  EXPECT_TRUE(test::other_user_is_refused(server.port()));
  EXPECT_NE(next_refusal(server).find("belongs to uid 65534"), std::string::npos);
  EXPECT_TRUE(StoreClient{server.port()}.ping());
}

TEST(StoreServerAdmission, AHostIsServedWhenItHasAWitness) {
  const StoreServerOptions options = several_hosts();
  const StoreServer server{options};
  EXPECT_TRUE(StoreClient::from(kOwnHost, server.port()).ping());
  StoreClient early{server.port(), false};
  early.send(request::validate() + request::set("/k", "value"));
  EXPECT_TRUE(early.is_refused());
  const std::string line = next_refusal(server);
  EXPECT_NE(line.find("refused a connection from 127.0.0.1:"), std::string::npos) << line;
  EXPECT_NE(line.find("no node of the job has that address"), std::string::npos) << line;
  auto witness = witness_of(options, server);
  check_served("127.0.0.1", server.port(), Deadline::after(test::kPatience));
  const std::string none = integer(std::int64_t{0});
  StoreClient client{server.port()};
  EXPECT_EQ(client.ask(request::get_num_keys(), none), none);
  StoreClient stranger = StoreClient::from(kStranger, server.port());
  EXPECT_TRUE(stranger.is_refused());
  witness.reset();
  EXPECT_TRUE(client.ping());  // a served client stays served
  EXPECT_TRUE(StoreClient{server.port()}.is_refused());
}

TEST(StoreServerAdmission, IPv6) {
  StoreServerOptions options = several_hosts();
  options.is_own_host = [](const PeerAddress& address) { return address.is_v4(); };
  const StoreServer server{options};
  try {
    const Witness witness{"::1", server.port(), *options.key, Deadline::after(test::kPatience)};
    check_served("::1", server.port(), Deadline::after(test::kPatience));
    EXPECT_TRUE(StoreClient(server.port(), true, "127.0.0.1").ping());
  } catch (const Error& error) {
    if (error.code() != ErrorCode::unavailable) throw;
    GTEST_SKIP() << "no IPv6 here: " << error.what();
  }
}

TEST(StoreServerAdmission, WitnessesThatAreNotNeededAreToldSo) {
  const StoreServerOptions options = several_hosts();
  const StoreServer server{options};
  const auto first = witness_of(options, server);
  const auto second = witness_of(options, server);
  second->wait();  // this host has one
  StoreServerOptions here = several_hosts();
  here.is_own_host = {};
  const StoreServer local{here};
  const auto third = witness_of(here, local);
  third->wait();
  EXPECT_TRUE(StoreClient{server.port()}.ping());
  EXPECT_TRUE(StoreClient{local.port()}.ping());
}

TEST(StoreServerAdmission, AWrongKeyMakesNoWitness) {
  const StoreServerOptions options = several_hosts();
  const StoreServer server{options};
  StoreServerOptions wrong = options;
  wrong.key = StoreKey::make();
  const Error error = test::thrown_by([&] { witness_of(wrong, server); });
  EXPECT_EQ(error.code(), ErrorCode::conflict);
  EXPECT_NE(error.cause().find("does not know this job's secret"), std::string::npos);
  // which continues regardless
  StoreClient liar{server.port(), false};
  liar.send(greeting());
  liar.receive(kChallengeBytes);
  const Bytes proof = stream::with_length(Bytes(32, std::byte{1}));
  liar.send({reinterpret_cast<const char*>(proof.data()), proof.size()});
  EXPECT_TRUE(liar.is_closed());
  EXPECT_TRUE(StoreClient{server.port()}.is_refused());
}

TEST(StoreServerAdmission, ARecordedWitnessMakesNone) {
  const StoreServerOptions options = several_hosts();
  const StoreServer server{options};
  StoreClient first{server.port(), false};
  stream::Handshake handshake(kWitnessProtocol, {},
                              stream::job_secret_provers(stream::Secret::of(options.key->bytes())));
  std::string recorded;
  while (!handshake.proven()) {
    const Bytes said = handshake.answer();
    recorded.append(reinterpret_cast<const char*>(said.data()), said.size());
    first.send({reinterpret_cast<const char*>(said.data()), said.size()});
    if (handshake.proven()) break;
    const std::string heard = first.receive(handshake.due());
    handshake.take(std::as_bytes(std::span{heard}));
  }
  EXPECT_EQ(recorded.size(), stream::kGreetingBytes + kProofBytes);
  StoreClient replay{server.port(), false};
  replay.send(recorded.substr(0, stream::kGreetingBytes));
  replay.receive(kChallengeBytes);
  replay.send(recorded.substr(stream::kGreetingBytes));
  EXPECT_TRUE(replay.is_refused());
}

TEST(StoreServerAdmission, ATranslatedHostIsTold) {
  const StoreServerOptions options = several_hosts();
  const StoreServer server{options};
  FalseWitness elsewhere{options, server};
  const Endpoint own = *Endpoint::own(elsewhere.client().fd());
  const Welcome by_address =
      elsewhere.state({.host = random_bytes(), .own = own, .addresses = {*PeerAddress::parse("10.1.2.3")}});
  EXPECT_EQ(by_address.role, Role::translated);
  EXPECT_EQ(by_address.seen, own);
  FalseWitness port{options, server};
  Endpoint other = *Endpoint::own(port.client().fd());
  ++other.port;
  EXPECT_EQ(port.state({.host = random_bytes(), .own = other, .addresses = {other.address}}).role, Role::translated);
  EXPECT_TRUE(StoreClient{server.port()}.is_refused());
}

TEST(StoreServerAdmission, NothingIsReadBeforeTheAnswer) {
  const StoreServerOptions options = several_hosts();
  const StoreServer server{options};
  FalseWitness witness{options, server};
  EXPECT_EQ(witness.state().role, Role::resident);
  StoreClient client{server.port()};
  client.send(request::set("/k", "value") + request::ping(7));
  const Question question = witness.question();
  EXPECT_EQ(question.source, *Endpoint::own(client.fd()));
  EXPECT_EQ(question.destination, *Endpoint::other(client.fd()));
  EXPECT_TRUE(client.is_kept_waiting());
  const std::string none = integer(std::int64_t{0});
  EXPECT_EQ(StoreClient::from(kOwnHost, server.port()).ask(request::get_num_keys(), none), none);
  witness.answer(question.id + 1, {.kind = SocketOwner::Kind::ours, .uid = 0});  // of nobody
  EXPECT_TRUE(client.is_kept_waiting());
  witness.answer(question.id, {.kind = SocketOwner::Kind::ours, .uid = 0});
  EXPECT_EQ(client.receive(4), integer(std::uint32_t{7}));
}

/// Holds this process' open files, as a rank does between fork(2) and execve(2).
struct HoldingProcess {
  HoldingProcess() : pid(::fork()) {
    while (pid == 0) ::pause();
  }
  HoldingProcess& operator=(HoldingProcess&&) = delete;
  ~HoldingProcess() {
    ::kill(pid, SIGKILL);
    ::waitpid(pid, nullptr, 0);
  }
  pid_t pid;
};

// A starting rank holds all sockets of the process until its execve(2).
TEST(StoreServerAdmission, AClosedConnectionThatAForkedProcessHoldsDisturbsNoOther) {
  const StoreServerOptions options = several_hosts();
  const StoreServer server{options};
  FalseWitness witness{options, server};
  witness.state();
  base::UniqueFd later{
      ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};  // so that it does not get the server's number
  StoreClient first{server.port()};
  first.send(request::ping(7));
  witness.answer(witness.question().id, {.kind = SocketOwner::Kind::ours, .uid = 0});
  first.receive(4);
  const auto served = [end = *Endpoint::own(first.fd())](int fd) { return Endpoint::other(fd) == end; };
  int of_server = 0;
  while (of_server < 1024 && !served(of_server)) ++of_server;
  ASSERT_TRUE(served(of_server));
  const HoldingProcess holder;
  ::shutdown(first.fd(), SHUT_RDWR);  // the forked process holds this end, too
  const Deadline limit = Deadline::after(test::kPatience);
  while (served(of_server) && !limit.expired()) std::this_thread::sleep_for(milliseconds(1));
  StoreClient second = StoreClient::on(std::move(later), server.port());
  second.send(request::ping(8));
  const Question question = witness.question();
  EXPECT_TRUE(second.is_kept_waiting());
  witness.answer(question.id, {.kind = SocketOwner::Kind::ours, .uid = 0});
  EXPECT_EQ(second.receive(4), integer(std::uint32_t{8}));
}

TEST(StoreServerAdmission, AHostThatDoesNotAnswerIsNamed) {
  const StoreServerOptions options = several_hosts(kShort);
  const StoreServer server{options};
  auto witness = std::make_unique<FalseWitness>(options, server);
  witness->state();
  StoreClient client{server.port()};
  EXPECT_TRUE(client.is_refused());
  EXPECT_NE(next_refusal(server).find("did not report its owner within 1000 ms"), std::string::npos);
  StoreClient second{server.port()};
  witness->question();
  witness->question();
  witness.reset();
  EXPECT_TRUE(second.is_refused());
  EXPECT_NE(next_refusal(server).find("has ended"), std::string::npos);
}

// What a closed connection sent must not count for a later one with the same addresses and ports.
TEST(StoreServerAdmission, AClosedConnectionIsNotAdmitted) {
  const StoreServerOptions options = several_hosts();
  const StoreServer server{options};
  FalseWitness witness{options, server};
  witness.state();
  StoreClient client{server.port()};
  client.send(request::set("/k", "value"));
  const Question question = witness.question();
  client.reset();
  witness.answer(question.id, {.kind = SocketOwner::Kind::ours, .uid = 0});
  const std::string none = integer(std::int64_t{0});
  StoreClient other = StoreClient::from(kOwnHost, server.port());
  EXPECT_TRUE(other.ping());
  EXPECT_EQ(other.ask(request::get_num_keys(), none), none);
}

TEST(StoreServerAdmission, SilentConnectionsAndPartsAreClosedAtTheLimit) {
  const StoreServerOptions options = several_hosts(kShort);
  const StoreServer server{options};
  const auto witness = witness_of(options, server);
  std::vector<StoreClient> partial;
  for (const std::size_t size : {std::size_t{0}, std::size_t{1}, std::size_t{2}, stream::kGreetingBytes - 1}) {
    partial.emplace_back(server.port(), false);
    partial.back().send(greeting().substr(0, size));
  }
  for (StoreClient& client : partial) EXPECT_TRUE(client.is_refused());
  EXPECT_TRUE(StoreClient{server.port()}.ping());
}

TEST(StoreServerAdmission, FloodsOfStrangersDelayNobody) {
  constexpr std::size_t kMost = 16;
  StoreServerOptions options = several_hosts();
  options.max_unadmitted = kMost;
  const StoreServer server{options};
  const auto witness = witness_of(options, server);
  StoreClient worker{server.port()};
  std::vector<StoreClient> strangers;
  for (int i = 0; i < 300; ++i) {
    strangers.push_back(StoreClient::from(kStranger, server.port(), i % 2 == 0));
    EXPECT_EQ(worker.ask(request::add("/n", 1), integer(std::int64_t{i + 1})), integer(std::int64_t{i + 1}));
    if (i % 10 == 0) {
      EXPECT_TRUE(StoreClient{server.port()}.ping());
    }
  }
  std::size_t open = 0;
  for (StoreClient& stranger : strangers) open += stranger.is_closed(milliseconds(0)) ? 0 : 1;
  EXPECT_LE(open, kMost + 1);
  EXPECT_LE(server.take_refusals().size(), 8U);
}

// However long the answer about a client takes.
TEST(StoreServerAdmission, AFloodFromOneSourceEvictsNoClientOfAnother) {
  const std::string other = test::outer_address();
  if (other.empty()) GTEST_SKIP() << "this host has loopback addresses only";
  StoreServerOptions options = several_hosts();
  options.max_unadmitted = 16;
  const StoreServer server{options};
  FalseWitness witness{options, server};
  witness.state();
  StoreClient client{server.port()};
  const Question question = witness.question();
  std::vector<StoreClient> flood;
  for (int i = 0; i < 200; ++i) flood.push_back(StoreClient::from(other, server.port(), false));
  EXPECT_TRUE(flood.front().is_closed());
  EXPECT_TRUE(StoreClient::from(kOwnHost, server.port()).ping());  // the server has accepted all earlier ones
  witness.answer(question.id, {.kind = SocketOwner::Kind::ours, .uid = 0});
  EXPECT_TRUE(client.ping());
}

TEST(StoreServerAdmission, RandomBytesOfStrangersDoNoHarm) {
  const StoreServerOptions options = several_hosts();
  const StoreServer server{options};
  const auto witness = witness_of(options, server);
  StoreClient worker{server.port()};
  std::mt19937 random{20240917};
  for (int i = 0; i < 300; ++i) {
    std::string bytes(1 + random() % 200, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random() % 256);
    if (i % 3 == 0) bytes = greeting().substr(0, 1 + random() % 40) + bytes;
    if (i % 3 == 1) bytes = request::validate() + bytes;
    StoreClient client = StoreClient::from(kStranger, server.port(), false);
    try {
      client.send(bytes);
    } catch (const Error&) {  // closed early
    }
    if (i % 5 == 0) client.reset();
    EXPECT_TRUE(worker.ping());
  }
}

}  // namespace
}  // namespace ddp::store_server
