// Which keys all stores take.
#include "kvs/store_key.hpp"

#include <gtest/gtest.h>

#include <string>

#include "unit/kvs/rank_threads.hpp"

namespace ddp::kvs {
namespace {

TEST(StoreKey, TakesWhatEveryTransportCanCarry) {
  for (const std::string key : {"a", "ddp.record", "A-Z_0.9", "-"}) EXPECT_NO_THROW(check_key(key)) << key;
  EXPECT_NO_THROW(check_key(std::string(64, 'k')));
}

TEST(StoreKey, RefusesEverythingElse) {
  std::vector<std::string> keys = {"", std::string(65, 'k'), "a b", "a/b", "a;b", "a=b", "a\nb", "\xc3\xa9", "a%", "#"};
  keys.push_back(std::string("a\0b", 3));
  for (const std::string& key : keys) {
    const auto error = test::error_of([&] { check_key(key); });
    ASSERT_TRUE(error) << key;
    EXPECT_EQ(error->code(), ErrorCode::invalid_argument);
  }
}

TEST(StoreKey, MessageIsPrintable) {
  const auto error = test::error_of([] { check_key("a\nb"); });
  ASSERT_TRUE(error);
  EXPECT_NE(std::string(error->what()).find("a\\x0ab"), std::string::npos) << error->what();
  EXPECT_EQ(std::string(error->what()).find('\n'), std::string::npos);
}

}  // namespace
}  // namespace ddp::kvs
