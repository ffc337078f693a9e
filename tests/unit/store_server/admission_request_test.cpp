// The admission request as bytes, and the error of its sender for each kind of answer.
#include "store_server/admission_request.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <functional>
#include <set>
#include <string>
#include <thread>

#include <ddp/error.hpp>

#include "base/socket.hpp"
#include "store_client.hpp"
#include "store_server/admission_message.hpp"
#include "store_server/store_protocol.hpp"
#include "store_server/store_server.hpp"

namespace ddp::store_server {
namespace {

using Verdict = AdmissionReader::Verdict;

const std::string kSecret(64, 'a');
const AdmissionMessage kMessage = admission_message(kSecret);
const std::string kBytes{kMessage.begin(), kMessage.end()};

Error error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "no error";
  return Error{{.code = ErrorCode::system, .attempted = {}, .cause = {}, .native = {}, .ranks = {}, .hint = {}}};
}

/// The error of an admission request to a program that accepts the connection, reads the request and does @p then.
Error error_of_request(const std::function<void(int)>& then) {
  const base::UniqueFd listener = base::listen_tcp("127.0.0.1");
  std::thread server([&] {
    if (!base::wait_for(listener.get(), POLLIN, Deadline::after(test::kPatience))) return;
    const base::UniqueFd socket{::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)};
    std::string bytes(kAdmissionMessageBytes, '\0');
    base::receive_exactly(socket.get(), std::as_writable_bytes(std::span{bytes}), Deadline::after(test::kPatience),
                          "reading an admission request");
    EXPECT_EQ(bytes, kBytes);
    then(socket.get());
  });
  const std::uint16_t port = base::local_port(listener.get());
  const Error error =
      error_of([&] { request_admission("127.0.0.1", port, kSecret, Deadline::after(test::kPatience)); });
  server.join();
  return error;
}

TEST(AdmissionMessage, BeginsLikeNoClient) {
  EXPECT_EQ(kBytes, "\xDD\x01" + std::string(32, '\xAA'));
  EXPECT_GE(kMessage[0], kOperations);
  const AdmissionMessage mixed = admission_message("00fF" + std::string(60, '1'));
  EXPECT_EQ(mixed[2], 0x00);
  EXPECT_EQ(mixed[3], 0xFF);
  EXPECT_EQ(mixed[33], 0x11);
}

TEST(AdmissionMessage, AnErrorDoesNotShowTheSecret) {
  for (const std::string& text : {std::string{}, std::string(63, 'b'), std::string(65, 'b'), std::string(63, 'b') + "g",
                                  "0x" + std::string(62, 'b'), std::string(64, ' ')}) {
    const Error error = error_of([&] { admission_message(text); });
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    EXPECT_EQ(std::string{error.what()}.find("bbb"), std::string::npos) << error.what();
  }
}

TEST(AdmissionMessage, SecretsAreAllDifferent) {
  std::set<std::string> seen;
  for (int i = 0; i < 100; ++i) {
    const std::string secret = make_admission_secret();
    EXPECT_EQ(secret.size(), 64U);
    EXPECT_NO_THROW(admission_message(secret));
    seen.insert(secret);
  }
  EXPECT_EQ(seen.size(), 100U);
}

TEST(AdmissionReader, TakesAnyPieces) {
  for (std::size_t cut = 0; cut < kAdmissionMessageBytes; ++cut) {
    AdmissionReader reader;
    EXPECT_EQ(reader.feed(kBytes.substr(0, cut), kMessage), Verdict::incomplete);
    EXPECT_EQ(reader.missing_bytes(), kAdmissionMessageBytes - cut);
    EXPECT_EQ(reader.feed(kBytes.substr(cut), kMessage), Verdict::valid);
    EXPECT_EQ(reader.missing_bytes(), 0U);
  }
}

TEST(AdmissionReader, EveryBitCounts) {
  for (std::size_t bit = 0; bit < 8 * kAdmissionMessageBytes; ++bit) {
    std::string bytes = kBytes;
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_EQ(AdmissionReader{}.feed(bytes, kMessage), Verdict::invalid) << bit;
  }
}

TEST(AdmissionRequest, NoListener) {
  std::uint16_t port = 0;
  {
    const base::UniqueFd listener = base::listen_tcp("127.0.0.1");
    port = base::local_port(listener.get());
  }
  const Error error =
      error_of([&] { request_admission("127.0.0.1", port, kSecret, Deadline::after(test::kPatience)); });
  EXPECT_EQ(error.code(), ErrorCode::unavailable);
  EXPECT_EQ(error.native(), "ECONNREFUSED (111)");
  EXPECT_NE(std::string{error.what()}.find("127.0.0.1:" + std::to_string(port)), std::string::npos) << error.what();
}

TEST(AdmissionRequest, NoAnswerBeforeTheDeadline) {
  const base::UniqueFd listener = base::listen_tcp("127.0.0.1");  // the kernel takes the connection
  const auto begin = std::chrono::steady_clock::now();
  const Error error = error_of([&] {
    request_admission("127.0.0.1", base::local_port(listener.get()), kSecret,
                      Deadline::after(std::chrono::milliseconds(200)));
  });
  EXPECT_EQ(error.code(), ErrorCode::timeout);
  EXPECT_EQ(error.native(), "ETIMEDOUT (110)");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, test::kPatience);
}

TEST(AdmissionRequest, ClosedWithoutAnAnswer) {
  const Error error = error_of_request([](int) {});
  EXPECT_EQ(error.code(), ErrorCode::conflict);
  EXPECT_EQ(error.cause(), "the server closed the connection: it does not have this step's secret");
}

TEST(AdmissionRequest, BrokenConnection) {
  const Error error = error_of_request([](int socket) {
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(socket, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  });
  EXPECT_EQ(error.code(), ErrorCode::peer_lost);
  EXPECT_EQ(error.native(), "ECONNRESET (104)");
}

TEST(AdmissionRequest, AnotherProgram) {
  const Error error = error_of_request([](int socket) { ::send(socket, "HTTP", 4, MSG_NOSIGNAL); });
  EXPECT_EQ(error.code(), ErrorCode::protocol);
  EXPECT_NE(error.cause().find("byte 72"), std::string::npos) << error.cause();
}

TEST(AdmissionRequest, AServerWithoutASecret) {
  const StoreServer server{{}};
  const Error error =
      error_of([&] { request_admission("127.0.0.1", server.port(), kSecret, Deadline::after(test::kPatience)); });
  EXPECT_EQ(error.code(), ErrorCode::conflict);
}

TEST(AdmissionRequest, NeedsANumericAddressAndASecret) {
  for (const std::string address : {"localhost", "", "127.0.0.1:80"}) {
    const Error error = error_of([&] { request_admission(address, 1, kSecret, Deadline::after(test::kPatience)); });
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << address;
  }
  const Error error = error_of([&] { request_admission("127.0.0.1", 1, "short", Deadline::after(test::kPatience)); });
  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_EQ(std::string{error.what()}.find("short"), std::string::npos) << error.what();
}

}  // namespace
}  // namespace ddp::store_server
