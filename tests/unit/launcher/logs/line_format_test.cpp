// Which prefixes are coloured, and which lines tell their time.
#include "logs/line_format.hpp"

#include <gtest/gtest.h>

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
}  // namespace ddp::launcher
