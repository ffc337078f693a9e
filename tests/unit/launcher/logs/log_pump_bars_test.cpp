// Progress bars behind a prefix: few lines where they cannot be overwritten, one place where they can.
#include <pty.h>
#include <termios.h>

#include "unit/launcher/logs/log_pump_fixture.hpp"

namespace ddp::launcher {
namespace {

TEST_F(LogPumpTest, AProgressBarBehindAPrefixGivesFewLines) {
  LogPump pump{options()};
  base::UniqueFd writing = pump.add(to_console(3, true));
  StreamRoute teed = to_console(4, true);
  teed.file = folder_ / "4.log";
  base::UniqueFd interrupted = pump.add(teed);
  pump.start();
  write_all(writing.get(), "start\n\r 10%\r 20%");
  for (int percent = 21; percent < 100; ++percent) {
    write_all(writing.get(), "\r " + std::to_string(percent) + "%");
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  write_all(writing.get(), "\r100%\n");
  write_all(interrupted.get(), "50%\r51%\r");
  writing.reset();
  interrupted.reset();
  pump.finish(kGenerous);
  const auto lines = split_lines(out_.text());
  const auto of = [&](const std::string& prefix) {
    std::vector<std::string> found;
    for (const std::string& line : lines)
      if (line.starts_with(prefix)) found.push_back(line.substr(prefix.size()));
    return found;
  };
  // The first state at once, hardly another within the interval, and the last one.
  EXPECT_THAT(of("[default3]:").front(), "start");
  EXPECT_THAT(of("[default3]:").back(), "100%");
  EXPECT_LT(of("[default3]:").size(), 10U);
  EXPECT_THAT(of("[default4]:"), ElementsAre("51%"));
  EXPECT_EQ(content_of(folder_ / "4.log"), "50%\r51%\r");
}

TEST_F(LogPumpTest, AProgressBarOnATerminalIsRewrittenInPlace) {
  int master = -1;
  int slave = -1;
  winsize size{.ws_row = 24, .ws_col = 20, .ws_xpixel = 0, .ws_ypixel = 0};
  ASSERT_EQ(::openpty(&master, &slave, nullptr, nullptr, &size), 0);
  const base::UniqueFd reading{master};
  const base::UniqueFd terminal{slave};
  termios mode{};
  ASSERT_EQ(::tcgetattr(slave, &mode), 0);
  ::cfmakeraw(&mode);
  ASSERT_EQ(::tcsetattr(slave, TCSANOW, &mode), 0);
  LogPumpOptions own = options();
  own.console_out = slave;
  own.terminal_out = true;
  own.prefix_template = "<$local_rank>";
  LogPump pump{own};
  base::UniqueFd writing = pump.add(to_console(0, true));
  base::UniqueFd other = pump.add(to_console(1, true));
  pump.start();
  const auto expect = [&](const std::string& text) { EXPECT_EQ(read_bytes(master, text.size()), text); };
  write_all(writing.get(), "\r 10%");
  expect("\r\x1b[34m<0>\x1b[0m 10%\x1b[0m\x1b[K");
  write_all(writing.get(), "\r 20% and much more than fits");
  expect("\r\x1b[34m<0>\x1b[0m 20% and much mo\x1b[0m\x1b[K");
  write_all(other.get(), "line\n");
  expect("\r\x1b[K\x1b[96m<1>\x1b[0mline\n");
  write_all(writing.get(), "\r done\n");
  expect("\x1b[34m<0>\x1b[0m done\n");
  pump.finish(kGenerous);
}

}  // namespace
}  // namespace ddp::launcher
