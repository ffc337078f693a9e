#include "store_server/store_key.hpp"

#include <ddp/error.hpp>
#include "support/error_of.hpp"

namespace ddp::store_server {
namespace {

TEST(StoreKey, AllDifferAndSurviveAsText) {
  std::set<std::string> seen;
  for (int i = 0; i < 100; ++i) {
    const StoreKey key = StoreKey::make();
    EXPECT_EQ(key.text().size(), 64U);
    EXPECT_EQ(StoreKey::parse(key.text()).bytes(), key.bytes());
    seen.insert(key.text());
  }
  EXPECT_EQ(seen.size(), 100U);
  const StoreKey mixed = StoreKey::parse("00fF" + std::string(60, '1'));
  EXPECT_EQ(mixed.bytes()[0], 0x00);
  EXPECT_EQ(mixed.bytes()[1], 0xFF);
  EXPECT_EQ(mixed.bytes()[31], 0x11);
}

TEST(StoreKey, AnErrorDoesNotShowIt) {
  for (const std::string& text : {std::string{}, std::string(63, 'b'), std::string(65, 'b'), std::string(63, 'b') + "g",
                                  "0x" + std::string(62, 'b'), std::string(64, ' ')}) {
    const auto error = test::error_of([&] { StoreKey::parse(text); });
    ASSERT_TRUE(error) << text;
    EXPECT_EQ(error->code(), ErrorCode::invalid_argument);
    EXPECT_EQ(std::string{error->what()}.find("bbb"), std::string::npos) << error->what();
  }
}

}  // namespace
}  // namespace ddp::store_server
