// The job's secret is read as it was written, and a wrong one is never shown.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include <ddp/error.hpp>

#include "control/handshake.hpp"

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

TEST(Secret, OfATextIsTheSameForTheSameTextOnly) {
  EXPECT_EQ(Secret::from_text("job 42").to_hex(), Secret::from_text("job 42").to_hex());
  EXPECT_NE(Secret::from_text("job 42").to_hex(), Secret::from_text("job 43").to_hex());
  // BLAKE2b with 32 bytes of the empty text, as b2sum -l 256 gives it
  EXPECT_EQ(Secret::from_text("").to_hex(), "0e5751c026e543b2e8ab2eb06099daa1d1e5df47778f7787faab45cdf12fe3a8");
}

}  // namespace
}  // namespace ddp::launcher::control
