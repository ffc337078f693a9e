// Strangers are known by their first wrong byte, and a proof is good for one connection only.
#include "control/greeting.hpp"

#include <gtest/gtest.h>

#include <ddp/error.hpp>

#include "control/prover.hpp"
#include "control/session_cipher.hpp"

namespace ddp::launcher::control {
namespace {

Greeting some_greeting() { return {.version = 0x01020304, .key = EphemeralKey{}.public_key()}; }

TEST(Greeting, ComesBackAsItWasAndNotBeforeItIsWhole) {
  const Greeting greeting = some_greeting();
  const GreetingBytes bytes = encode(greeting);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(parse_greeting(std::span{bytes}.first(size)), std::nullopt);
  }
  EXPECT_EQ(parse_greeting(bytes), greeting);
}

TEST(Greeting, EveryWrongByteOfTheBeginningIsNoticedAtOnce) {
  for (std::size_t i = 0; i < 8; ++i) {
    GreetingBytes bytes = encode(some_greeting());
    bytes.at(i) ^= std::byte{1};
    EXPECT_EQ(parse_greeting(std::span{bytes}.first(i)), std::nullopt);
    EXPECT_THROW(parse_greeting(std::span{bytes}.first(i + 1)), Error);
  }
}

TEST(Announcement, ComesBackAsItWas) {
  for (const auto method :
       {ProofMethod::job_secret, ProofMethod::phrase, ProofMethod::munge, ProofMethod::key_file, ProofMethod::none}) {
    Announcement announcement{.method = method};
    announcement.salt.back() = 7;
    EXPECT_EQ(parse_announcement(encode(announcement)), announcement);
  }
  for (const int wrong : {0, 6, 255}) {
    AnnouncementBytes bytes = encode(Announcement{});
    bytes.front() = static_cast<std::byte>(wrong);
    EXPECT_THROW(parse_announcement(bytes), Error);
  }
}

TEST(Statement, CoversTheSideAndAllThatWasSent) {
  const Greeting a = some_greeting();
  const Greeting b = some_greeting();
  const Announcement announcement{.method = ProofMethod::munge};
  const Statement statement = make_statement(HandshakeSide::connecting, a, b, announcement);
  EXPECT_EQ(make_statement(HandshakeSide::connecting, a, b, announcement), statement);
  EXPECT_NE(make_statement(HandshakeSide::accepting, a, b, announcement), statement);
  EXPECT_NE(make_statement(HandshakeSide::connecting, b, a, announcement), statement);
  EXPECT_NE(make_statement(HandshakeSide::connecting, a, some_greeting(), announcement), statement);
  EXPECT_NE(make_statement(HandshakeSide::connecting, a, b, {.method = ProofMethod::none}), statement);
  EXPECT_NE(make_statement(HandshakeSide::connecting, a, b, {.method = ProofMethod::munge, .salt = {1}}), statement);
  Greeting newer = a;
  ++newer.version;
  EXPECT_NE(make_statement(HandshakeSide::connecting, newer, b, announcement), statement);
}

TEST(Proof, IsForOneSecretAndOneStatement) {
  const auto prover = job_secret_prover(Secret::random());
  const Statement statement = make_statement(HandshakeSide::connecting, some_greeting(), some_greeting(), {});
  const Statement other = make_statement(HandshakeSide::accepting, some_greeting(), some_greeting(), {});
  const Bytes proof = prover->prove(statement);
  EXPECT_NO_THROW(prover->check(proof, statement));
  EXPECT_THROW(prover->check(proof, other), Error);
  EXPECT_THROW(job_secret_prover(Secret::random())->check(proof, statement), Error);
  EXPECT_THROW(prover->check({}, statement), Error);
  EXPECT_THROW(prover->check(std::span{proof}.first(proof.size() - 1), statement), Error);
  for (std::size_t i = 0; i < proof.size(); ++i) {
    Bytes wrong = proof;
    wrong.at(i) ^= std::byte{0x80};
    EXPECT_THROW(prover->check(wrong, statement), Error);
  }
}

TEST(Proof, HasItsLengthInFront) {
  const Bytes proof(300, std::byte{5});
  const Bytes bytes = with_length(proof);
  EXPECT_EQ(bytes.size(), 302U);
  EXPECT_EQ(proof_length(bytes), 300U);
  EXPECT_EQ(proof_length(with_length(Bytes(kMaxProofBytes))), kMaxProofBytes);
  EXPECT_THROW(proof_length(with_length(Bytes(kMaxProofBytes + 1))), Error);
}

}  // namespace
}  // namespace ddp::launcher::control
