// Which prefixes are coloured.
#include "logs/line_format.hpp"

#include <gtest/gtest.h>

namespace ddp::launcher {
namespace {

std::string console_prefix(const LogPumpOptions& options, int rank, Stream stream) {
  const LineFormat format{
      options, StreamRoute{.rank = rank, .local_rank = rank, .role = "default", .stream = stream, .file = {}}};
  EXPECT_EQ(format.prefix(), "[default" + std::to_string(rank) + "]:");
  return format.console_prefix();
}

TEST(LineFormat, EachStreamHasItsOwnColours) {
  LogPumpOptions options;
  EXPECT_EQ(console_prefix(options, 0, Stream::out), "[default0]:");
  EXPECT_EQ(console_prefix(options, 0, Stream::err), "[default0]:");
  options.colour_out = true;
  EXPECT_EQ(console_prefix(options, 0, Stream::out), "\x1b[36m[default0]:\x1b[0m");
  EXPECT_EQ(console_prefix(options, 0, Stream::err), "[default0]:");
  options.colour_out = false;
  options.colour_err = true;
  EXPECT_EQ(console_prefix(options, 0, Stream::out), "[default0]:");
  EXPECT_EQ(console_prefix(options, 1, Stream::err), "\x1b[33m[default1]:\x1b[0m");
}

}  // namespace
}  // namespace ddp::launcher
