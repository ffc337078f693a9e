// DDP_PEER_TIMEOUT: its default, its unit, and that limits which healthy processes exceed are refused.
#include "base/peer_timeout.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ddp/error.hpp>

namespace ddp::base {
namespace {

using std::chrono::milliseconds;

milliseconds with(const char* value) { return peer_timeout(Environment{{{"DDP_PEER_TIMEOUT", value}}}); }

TEST(PeerTimeout, IsThirtySecondsByDefault) {
  EXPECT_EQ(peer_timeout(Environment{{}}), std::chrono::seconds(30));
  EXPECT_EQ(with(""), std::chrono::seconds(30));
}

TEST(PeerTimeout, IsInSeconds) {
  EXPECT_EQ(with("5"), milliseconds(5000));
  EXPECT_EQ(with("7.25"), milliseconds(7250));
  EXPECT_EQ(with("600"), milliseconds(600'000));
}

TEST(PeerTimeout, RefusesWhatHealthyProcessesExceed) {
  for (const char* bad : {"4.99", "1", "0.001"}) {
    try {
      with(bad);
      ADD_FAILURE() << bad;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_THAT(error.what(), testing::HasSubstr("DDP_PEER_TIMEOUT"));
      EXPECT_THAT(error.what(), testing::HasSubstr(bad));
      EXPECT_THAT(error.hint(), testing::HasSubstr("at least 5 s"));
    }
  }
}

TEST(PeerTimeout, RefusesWhatIsNoTime) {
  for (const char* bad : {"0", "-30", "soon", "30s", "nan", "1e99"}) EXPECT_THROW(with(bad), Error) << bad;
}

}  // namespace
}  // namespace ddp::base
