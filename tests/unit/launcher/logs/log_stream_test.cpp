// Which prefixes are coloured, and which lines tell their time.
#include "logs/log_stream.hpp"

namespace ddp::launcher {
namespace {

constexpr std::chrono::system_clock::time_point kLineTime{std::chrono::milliseconds{1'700'000'000'042}};

std::string console_prefix(const LogPumpOptions& options, int rank, Stream stream) {
  const LineFormat format{options, StreamRoute{.rank = rank, .local_rank = rank, .role = "default", .stream = stream}};
  EXPECT_EQ(format.prefix(kLineTime), "[default" + std::to_string(rank) + "]:");
  return format.console_prefix(kLineTime);
}

TEST(LineFormat, EachStreamHasItsOwnColours) {
  LogPumpOptions options;
  EXPECT_EQ(console_prefix(options, 0, Stream::out), "[default0]:");
  EXPECT_EQ(console_prefix(options, 0, Stream::err), "[default0]:");
  options.terminal_out = true;
  EXPECT_EQ(console_prefix(options, 0, Stream::out), "\x1b[36m[default0]:\x1b[0m");
  EXPECT_EQ(console_prefix(options, 0, Stream::err), "[default0]:");
  options.terminal_out = false;
  options.terminal_err = true;
  EXPECT_EQ(console_prefix(options, 0, Stream::out), "[default0]:");
  EXPECT_EQ(console_prefix(options, 1, Stream::err), "\x1b[33m[default1]:\x1b[0m");
}

TEST(LineFormat, TheTimeComesBeforeThePrefix) {
  LogPumpOptions options;
  options.timestamps = true;
  const StreamRoute route{.rank = 3, .local_rank = 1, .role = "default", .stream = Stream::out};
  EXPECT_EQ((LineFormat{options, route}.console_prefix(kLineTime)), "2023-11-14T22:13:20.042Z [default1]:");
  EXPECT_EQ((LineFormat{options, route}.prefix(kLineTime)), "2023-11-14T22:13:20.042Z [default1]:");
  options.format = LogFormat::json;
  EXPECT_TRUE((LineFormat{options, route}.json_line({.text = "x"}, kLineTime))
                  .starts_with(R"({"time":"2023-11-14T22:13:20.042000Z","host")"));
}

}  // namespace

// The last words of a failed rank: within limits, and legible.

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
