// Consoles that are stuck or gone, full disks, writers that do not end: nothing that is stuck stops the rest.
#include "logs/log_pump.hpp"

#include <sys/prctl.h>
#include <sys/resource.h>

#include <ddp/error.hpp>

#include "unit/launcher/logs/log_pump_fixture.hpp"

namespace ddp::launcher {
namespace {

using std::chrono::seconds;

TEST_F(LogPumpTest, ABlockedConsoleStopsNothingElse) {
  Pipe stuck;
  LogPumpOptions own = options();
  own.console_out = stuck.writing.get();
  LogPump pump{own};
  const base::UniqueFd loud = pump.add(to_console(0, true));
  const base::UniqueFd filed = pump.add(to_file(1, folder_ / "1.log"));
  const base::UniqueFd error = pump.add(to_console(2, true, Stream::err));
  const base::UniqueFd tailed = pump.add(to_tail(3));
  pump.start();
  // The loud rank is held back only when console, queue and its pipe are full.
  ASSERT_EQ(::fcntl(loud.get(), F_SETFL, O_NONBLOCK), 0);
  std::string sent;
  const std::string line(99, 'x');
  Deadline quiet = Deadline::after(milliseconds(500));
  while (!quiet.expired()) {
    const std::string text = line + "\n";
    if (::write(loud.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size())) {
      sent += text;
      quiet = Deadline::after(milliseconds(500));
    }
    ASSERT_LT(sent.size(), 100'000'000U);  // or memory would grow without end
  }
  for (int i = 0; i < 20; ++i) {
    write_all(filed.get(), std::string(100'000, 'f') + "\n");
    write_all(tailed.get(), std::string(100'000, 't') + "\n");
  }
  write_all(tailed.get(), "last words\n");
  write_all(error.get(), "other console\n");
  EXPECT_EQ(pump.tail(3), "last words\n");
  EXPECT_TRUE(eventually([&] { return content_of(folder_ / "1.log").size() == 20 * 100'001U; }));
  // It goes on, without loss, once somebody reads.
  const std::size_t expected = sent.size() / 100 * (100 + std::string_view{"[default0]:"}.size());
  std::future<std::string> read =
      std::async(std::launch::async, [&] { return read_bytes(stuck.reading.get(), expected); });
  pump.finish(kGenerous);
  const std::string got = read.get();
  EXPECT_EQ(got.size(), expected);
  const auto lines = split_lines(got);
  EXPECT_EQ(std::count(lines.begin(), lines.end(), "[default0]:" + line), static_cast<long>(lines.size()));
  EXPECT_EQ(err_.text(), "[default2]:other console\n");
}

TEST_F(LogPumpTest, FinishGivesUpOnAStuckConsole) {
  Pipe stuck;
  LogPumpOptions own = options();
  own.console_out = stuck.writing.get();
  LogPump pump{own};
  StreamRoute teed = to_console(0, true);
  teed.file = folder_ / "0.log";
  base::UniqueFd writing = pump.add(teed);
  pump.start();
  std::string sent;
  for (int i = 0; i < 3000; ++i) sent += std::string(99, 'x') + "\n";
  write_all(writing.get(), sent);
  const Deadline late = generous();
  pump.finish(milliseconds(300));
  EXPECT_FALSE(late.expired());
  EXPECT_TRUE(content_of(folder_ / "0.log") == sent);  // files miss nothing
  EXPECT_THAT(
      err_.text(),
      MatchesRegex(
          "ddprun: standard output was not read in time: [0-9]+ bytes of the ranks' output were not written to it\n"));
}

TEST_F(LogPumpTest, FinishWaitsForASlowReaderAsLongAsItReads) {
  Pipe slow;
  LogPumpOptions own = options();
  own.console_out = slow.writing.get();
  LogPump pump{own};
  base::UniqueFd writing = pump.add(to_console(0, true));
  pump.start();
  std::string sent;
  for (int i = 0; i < 3000; ++i) sent += std::string(99, 'x') + "\n";
  write_all(writing.get(), sent);
  const std::size_t expected = sent.size() + 3000 * std::string_view{"[default0]:"}.size();
  constexpr seconds kPatience{1};
  std::future<std::string> read = std::async(std::launch::async, [&] {
    std::string got;
    while (got.size() < expected) {
      std::this_thread::sleep_for(milliseconds(60));
      const std::string more = read_bytes(slow.reading.get(), std::min<std::size_t>(16'384, expected - got.size()));
      if (more.empty()) break;
      got += more;
    }
    return got;
  });
  const auto begin = std::chrono::steady_clock::now();
  pump.finish(kPatience);
  EXPECT_GT(std::chrono::steady_clock::now() - begin, kPatience);
  slow.writing.reset();
  EXPECT_EQ(read.get().size(), expected);
  EXPECT_EQ(err_.text(), "");
}

TEST_F(LogPumpTest, FinishCanBecomeUrgent) {
  Pipe stuck;
  LogPumpOptions own = options();
  own.console_out = stuck.writing.get();
  LogPump pump{own};
  base::UniqueFd writing = pump.add(to_console(0, true));
  pump.start();
  write_all(writing.get(), std::string(300'000, 'x') + "\n");
  const Deadline late = generous();
  int asked = 0;
  pump.finish([&asked]() -> milliseconds { return ++asked < 5 ? std::chrono::hours(1) : seconds(0); });
  EXPECT_FALSE(late.expired());
  EXPECT_GE(asked, 5);
  EXPECT_THAT(err_.text(), MatchesRegex("ddprun: standard output was not read in time: [0-9]+ bytes .*\n"));
}

TEST_F(LogPumpTest, StuckErrorConsoleWithoutReaderDoesNotHangDestruction) {
  Pipe stuck;
  LogPumpOptions own = options();
  own.console_out = own.console_err = stuck.writing.get();
  const Deadline late = generous();
  {
    LogPump pump{own};
    base::UniqueFd writing = pump.add(to_console(0, false));
    pump.start();
    write_all(writing.get(), std::string(300'000, 'x'));
  }
  EXPECT_FALSE(late.expired());
}

TEST_F(LogPumpTest, FinishDeliversWhatOthersStillHoldOpen) {
  LogPump pump{options()};
  StreamRoute teed = to_console(0, true);
  teed.file = folder_ / "0.log";
  base::UniqueFd writing = pump.add(teed);
  pump.start();
  const pid_t holder = ::fork();
  if (holder == 0) {
    keep_only(writing.get());
    write_all(STDOUT_FILENO, "from the child\n");
    for (;;) ::pause();
  }
  EXPECT_TRUE(eventually([&] { return content_of(folder_ / "0.log") == "from the child\n"; }));
  write_all(writing.get(), "from the parent\n");
  writing.reset();
  pump.finish(kGenerous);
  EXPECT_EQ(content_of(folder_ / "0.log"), "from the child\nfrom the parent\n");
  EXPECT_EQ(out_.text(), "[default0]:from the child\n[default0]:from the parent\n");
  ::kill(holder, SIGKILL);
  ::waitpid(holder, nullptr, 0);
}

TEST_F(LogPumpTest, FinishEndsThoughAWriterGoesOn) {
  LogPump pump{options()};
  base::UniqueFd writing = pump.add(to_file(0, "/dev/null"));
  pump.start();
  const pid_t writer = ::fork();
  if (writer == 0) {
    keep_only(writing.get());
    ::signal(SIGPIPE, SIG_DFL);
    const std::string text(100'000, 'x');
    for (;;) {
      if (::write(STDOUT_FILENO, text.data(), text.size()) <= 0) ::_exit(1);
    }
  }
  writing.reset();
  pump.finish(kGenerous);
  int status = 0;
  EXPECT_EQ(::waitpid(writer, &status, 0), writer);  // nobody reads its pipe any more
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGPIPE);
}

TEST_F(LogPumpTest, FinishBeforeStartAndTwice) {
  LogPump idle{options()};
  idle.add(to_file(0, folder_ / "0.log"));
  EXPECT_EQ(idle.tail(0), "");
  idle.finish(kGenerous);
  idle.finish(kGenerous);
  LogPump pump{options()};
  pump.start();
  pump.finish(seconds(0));
  pump.finish(seconds(0));
}

TEST_F(LogPumpTest, ConsoleWithoutReaderLosesOnlyItself) {
  Pipe gone;
  gone.reading.reset();
  LogPumpOptions own = options();
  own.console_out = gone.writing.get();
  LogPump pump{own};
  StreamRoute teed = to_console(0, true);
  teed.file = folder_ / "0.log";
  base::UniqueFd writing = pump.add(teed);
  base::UniqueFd error = pump.add(to_console(1, false, Stream::err));
  pump.start();
  const std::string much = std::string(3'000'000, 'x') + "\n";
  write_all(writing.get(), much);
  write_all(error.get(), "still here\n");
  writing.reset();
  error.reset();
  pump.finish(kGenerous);
  EXPECT_TRUE(content_of(folder_ / "0.log") == much);
  EXPECT_EQ(err_.text(), "still here\n");
}

TEST_F(LogPumpTest, AFullDiskIsSaidOnceAndStopsNobody) {
  LogPump pump{options()};
  StreamRoute teed = to_console(0, true);
  teed.file = "/dev/full";
  base::UniqueFd writing = pump.add(teed);
  base::UniqueFd other = pump.add(to_file(1, folder_ / "1.log"));
  pump.start();
  std::string much;
  for (int i = 0; i < 20'000; ++i) much += "a line of this rank\n";
  write_all(writing.get(), much);
  write_all(other.get(), "fine\n");
  writing.reset();
  other.reset();
  pump.finish(kGenerous);
  EXPECT_EQ(split_lines(out_.text()).size(), 20'000U);
  EXPECT_EQ(content_of(folder_ / "1.log"), "fine\n");
  EXPECT_EQ(err_.text(),
            "ddprun: writing the log file '/dev/full': No space left on device [ENOSPC (28)]; lines are dropped until "
            "it can be written again\n");
}

}  // namespace
}  // namespace ddp::launcher
