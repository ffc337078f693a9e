// The job's secret is read as it was written, and a wrong one is never shown.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <string>

#include <ddp/error.hpp>

#include "control/secret.hpp"

namespace ddp::launcher::control {
namespace {

TEST(Secret, IsWrittenAndReadAsHex) {
  const Secret secret = Secret::random();
  const std::string hex = secret.to_hex();
  EXPECT_EQ(hex.size(), 64U);
  EXPECT_TRUE(std::ranges::equal(Secret::from_hex(hex).bytes(), secret.bytes()));
  EXPECT_NE(Secret::random().to_hex(), hex);
  EXPECT_EQ(Secret::from_hex(std::string(64, 'A')).to_hex(), std::string(64, 'a'));
}

TEST(Secret, WrongHexIsRefusedAndNotRepeated) {
  const std::string good(64, 'a');
  for (const std::string& wrong :
       {std::string{}, good.substr(1), good + "a", good.substr(1) + "g", good.substr(1) + " ",
        good.substr(2) + std::string(2, '\0'), "0x" + good.substr(2), good + good}) {
    try {
      Secret::from_hex(wrong);
      ADD_FAILURE() << wrong;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_EQ(std::string(error.what()).find("aaaa"), std::string::npos);
    }
  }
}

TEST(Secret, OfAPhraseIsTheSameForTheSamePhraseAndSaltOnly) {
  const std::string secret = Secret::from_phrase("phrase", {1}).to_hex();
  EXPECT_EQ(Secret::from_phrase("phrase", {1}).to_hex(), secret);
  EXPECT_NE(Secret::from_phrase("phrases", {1}).to_hex(), secret);
  EXPECT_NE(Secret::from_phrase("phrase", {2}).to_hex(), secret);
}

TEST(Secret, OfAPhraseIsDearToGuess) {
  const auto begin = std::chrono::steady_clock::now();
  Secret::from_phrase("phrase", {});
  EXPECT_GT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(10));
}

}  // namespace
}  // namespace ddp::launcher::control
