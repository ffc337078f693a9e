// The errors of a witness, for each way in which a store, or what is no store, may answer.
#include "store_server/witness.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <ddp/error.hpp>

#include "base/socket.hpp"
#include "store_client.hpp"
#include "store_server/store_server.hpp"
#include "store_server/witness_protocol.hpp"
#include "support/error_of.hpp"

namespace ddp::store_server {
namespace {

const StoreKey kWitnessKey = StoreKey::make();

void be_witness(std::uint16_t port, std::chrono::milliseconds limit = test::kPatience) {
  const Witness witness{"127.0.0.1", port, kWitnessKey, Deadline::after(limit)};
}

/// Of a program that accepts the connection, and does @p then.
Error error_with(const std::function<void(int)>& then, std::chrono::milliseconds limit = test::kPatience) {
  const base::UniqueFd listener = base::listen_tcp("127.0.0.1");
  base::UniqueFd socket;
  std::thread server([&] {
    if (!base::wait_for(listener.get(), POLLIN, Deadline::after(test::kPatience))) return;
    socket.reset(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    std::string hello(stream::kGreetingBytes, '\0');
    base::receive_exactly(socket.get(), std::as_writable_bytes(std::span{hello}), Deadline::after(test::kPatience),
                          "reading a hello");
    then(socket.get());
  });
  const std::uint16_t port = base::local_port(listener.get());
  const Error error = test::thrown_by([&] { be_witness(port, limit); });
  server.join();
  return error;
}

TEST(Witness, NoListener) {
  std::uint16_t port = 0;
  {
    const base::UniqueFd listener = base::listen_tcp("127.0.0.1");
    port = base::local_port(listener.get());
  }
  const Error error = test::thrown_by([&] { be_witness(port); });
  EXPECT_EQ(error.code(), ErrorCode::unavailable);
  EXPECT_EQ(error.native(), "ECONNREFUSED (111)");
  EXPECT_NE(std::string{error.what()}.find("127.0.0.1:" + std::to_string(port)), std::string::npos) << error.what();
}

TEST(Witness, NoAnswerBeforeTheDeadline) {
  EXPECT_EQ(error_with([](int) {}, std::chrono::milliseconds(300)).code(), ErrorCode::timeout);
}

TEST(Witness, AnotherProgramAtThatPort) {
  const Error closed = error_with([](int fd) { ::shutdown(fd, SHUT_RDWR); });
  EXPECT_EQ(closed.code(), ErrorCode::conflict);
  EXPECT_NE(closed.cause().find("it is not the store of a job"), std::string::npos);
  const Error other = error_with([](int fd) {
    const std::string bytes(100, 'x');
    base::send_all(fd, std::as_bytes(std::span{bytes}), Deadline::after(test::kPatience), "answering");
  });
  EXPECT_EQ(other.code(), ErrorCode::conflict);
  EXPECT_NE(other.cause().find("it is not a store of a job"), std::string::npos);
}

TEST(Witness, AddressesAreNumeric) {
  EXPECT_EQ(test::thrown_by([] {
              const Witness witness{"localhost", 1, kWitnessKey, Deadline::after(test::kPatience)};
            }).code(),
            ErrorCode::invalid_argument);
}

TEST(Witness, EndsWithTheStore) {
  auto server = std::make_unique<StoreServer>(
      StoreServerOptions{.key = kWitnessKey, .is_own_host = [](const PeerAddress&) { return false; }});
  Witness witness{"127.0.0.1", server->port(), kWitnessKey, Deadline::after(test::kPatience)};
  check_served("127.0.0.1", server->port(), Deadline::after(test::kPatience));
  server.reset();
  witness.wait();
}

TEST(CheckServed, WhoIsNotServedIsTold) {
  const StoreServer server{{.is_own_host = [](const PeerAddress&) { return false; }}};
  const Error error =
      test::thrown_by([&] { check_served("127.0.0.1", server.port(), Deadline::after(test::kPatience)); });
  EXPECT_EQ(error.code(), ErrorCode::unavailable);
  EXPECT_NE(error.cause().find("refused an ordinary client of this node"), std::string::npos);
}

}  // namespace
}  // namespace ddp::store_server
