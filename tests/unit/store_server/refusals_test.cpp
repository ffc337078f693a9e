// How many lines a user sees of however many refusals.
#include "store_server/store_server_impl.hpp"

namespace ddp::store_server {
namespace {

using Lines = std::vector<std::string>;

TEST(Refusals, SomeAtOnce) {
  Refusals refusals;
  const auto now = Refusals::Clock::now();
  for (int i = 0; i < 100; ++i) refusals.post(std::to_string(i), now);
  EXPECT_EQ(refusals.take(), (Lines{"0", "1", "2", "3", "4"}));
  EXPECT_EQ(refusals.take(), Lines{});
}

TEST(Refusals, ThenFewerAndFewerThatSayHowManyThereWere) {
  Refusals refusals;
  auto now = Refusals::Clock::now();
  for (int i = 0; i < Refusals::kLinesAtOnce; ++i) refusals.post("first", now);
  refusals.take();
  Lines lines;
  for (int i = 0; i < 3600; ++i) {
    now += std::chrono::seconds(1);
    refusals.post("line", now);
    for (std::string& line : refusals.take()) lines.push_back(std::move(line));
  }
  ASSERT_GE(lines.size(), 5U);
  EXPECT_LE(lines.size(), 20U);
  EXPECT_EQ(lines[0], "line");
  EXPECT_EQ(lines[1], "line (and 1 more before)");
  EXPECT_EQ(lines[2], "line (and 3 more before)");
}

}  // namespace
}  // namespace ddp::store_server
