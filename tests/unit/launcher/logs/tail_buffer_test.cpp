// The last words of a failed rank: within limits, and legible.
#include "logs/tail_buffer.hpp"

#include <string>

#include <gmock/gmock.h>

namespace ddp::launcher {
namespace {

std::string tail_of(const std::string& text, int lines = 3, std::size_t bytes = 64) {
  TailBuffer tail{lines, bytes};
  tail.append(text);
  return tail.text();
}

TEST(TailBuffer, KeepsTheLastLines) {
  EXPECT_EQ(tail_of(""), "");
  EXPECT_EQ(tail_of("a\nb\n"), "a\nb\n");
  EXPECT_EQ(tail_of("a\nb\nc\n"), "a\nb\nc\n");
  EXPECT_EQ(tail_of("a\nb\nc\nd\n"), "b\nc\nd\n");
  EXPECT_EQ(tail_of("a\nb\nc\nd"), "b\nc\nd");
  EXPECT_EQ(tail_of("a\n\n\n\n"), "\n\n\n");
  EXPECT_EQ(tail_of("\n"), "\n");
}

TEST(TailBuffer, CutsAtLinesWhereItCan) {
  const std::string line(40, 'x');
  EXPECT_EQ(tail_of(line + "\n" + line + "\n"), line + "\n");
  EXPECT_EQ(tail_of(std::string(70, 'x') + "\nend"), "end");
  EXPECT_EQ(tail_of("first\n" + std::string(63, 'y') + "\n"), std::string(63, 'y') + "\n");
  EXPECT_EQ(tail_of(std::string(100, 'x')), std::string(64, 'x'));
  EXPECT_EQ(tail_of("\xe2\x82\xac" + std::string(63, 'x')), std::string(63, 'x'));  // no half of a character
}

TEST(TailBuffer, ShowsProgressBarsAsATerminalDoes) {
  EXPECT_EQ(tail_of("start\n\r 10%\r 20%\r 30%\nTraceback\n"), "start\n 30%\nTraceback\n");
  EXPECT_EQ(tail_of("start\n\r 10%\r 20%"), "start\n 20%");
  EXPECT_EQ(tail_of("a\r\nb\r\n"), "a\r\nb\r\n");
}

TEST(TailBuffer, StaysWithinItsLimitsWhateverComes) {
  TailBuffer tail{3, 64};
  for (int i = 0; i < 10'000; ++i) {
    tail.append(std::to_string(i) + (i % 7 == 0 ? "\n" : "-"));
    if (i % 100 == 0) {
      EXPECT_LE(tail.text().size(), 64U);
    }
  }
  EXPECT_THAT(tail.text(), testing::EndsWith("9996\n9997-9998-9999-"));
  tail.append(std::string(1'000'000, 'z') + "\nlast\n");
  EXPECT_EQ(tail.text(), "last\n");
}

}  // namespace
}  // namespace ddp::launcher
