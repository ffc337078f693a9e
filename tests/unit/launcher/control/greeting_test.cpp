// Strangers are known by their first wrong byte, and a proof is good for one connection only.
#include "control/greeting.hpp"

#include <gtest/gtest.h>

#include <ddp/error.hpp>

namespace ddp::launcher::control {
namespace {

TEST(Greeting, ComesBackAsItWasAndNotBeforeItIsWhole) {
  const Greeting greeting{.version = 0x01020304, .nonce = Greeting::fresh().nonce};
  const GreetingBytes bytes = encode(greeting);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(parse_greeting(std::span{bytes}.first(size)), std::nullopt);
  }
  EXPECT_EQ(parse_greeting(bytes), greeting);
}

TEST(Greeting, EveryWrongByteOfTheBeginningIsNoticedAtOnce) {
  for (std::size_t i = 0; i < 8; ++i) {
    GreetingBytes bytes = encode(Greeting::fresh());
    bytes.at(i) ^= std::byte{1};
    EXPECT_EQ(parse_greeting(std::span{bytes}.first(i)), std::nullopt);
    EXPECT_THROW(parse_greeting(std::span{bytes}.first(i + 1)), Error);
  }
}

TEST(Greeting, AProofIsForOneSecretOneRoleAndOnePairOfGreetings) {
  const Secret secret = Secret::random();
  const Greeting a = Greeting::fresh(), b = Greeting::fresh();
  const Proof proof = prove(secret, HandshakeSide::connecting, a, b);
  EXPECT_TRUE(proves(proof, secret, HandshakeSide::connecting, a, b));
  EXPECT_FALSE(proves(proof, Secret::random(), HandshakeSide::connecting, a, b));
  EXPECT_FALSE(proves(proof, secret, HandshakeSide::accepting, a, b));
  EXPECT_FALSE(proves(proof, secret, HandshakeSide::connecting, b, a));
  EXPECT_FALSE(proves(proof, secret, HandshakeSide::connecting, a, Greeting::fresh()));
  Greeting newer = a;
  ++newer.version;
  EXPECT_FALSE(proves(proof, secret, HandshakeSide::connecting, newer, b));
  for (std::size_t i = 0; i < proof.size(); ++i) {
    Proof wrong = proof;
    wrong.at(i) ^= std::byte{0x80};
    EXPECT_FALSE(proves(wrong, secret, HandshakeSide::connecting, a, b));
  }
}

}  // namespace
}  // namespace ddp::launcher::control
