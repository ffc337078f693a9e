// The last lines of a rank that has failed are whole, whatever holds up the rest.
#include "logs/log_pump.hpp"

#include "unit/launcher/logs/log_pump_fixture.hpp"

namespace ddp::launcher {
namespace {

TEST_F(LogPumpTest, TailHasTheLastWordsOfAWriterThatHasEnded) {
  LogPump pump{options()};
  constexpr int kRanks = 20;
  std::vector<base::UniqueFd> ends;
  for (int rank = 0; rank < kRanks; ++rank) ends.push_back(pump.add(to_tail(rank)));
  pump.start();
  for (int rank = 0; rank < kRanks; ++rank) {
    const pid_t pid = ::fork();
    if (pid == 0) {
      const int fd = ends[static_cast<std::size_t>(rank)].get();
      for (int i = 0; i < 500; ++i) write_all(fd, "line " + std::to_string(i) + "\n");
      write_all(fd, "last words of " + std::to_string(rank));
      ::_exit(1);
    }
    ::waitpid(pid, nullptr, 0);
    const auto lines = split_lines(pump.tail(rank));
    ASSERT_EQ(lines.size(), static_cast<std::size_t>(LogPump::kTailLines));
    EXPECT_EQ(lines.front(), "line 481");
    EXPECT_EQ(lines.back(), "last words of " + std::to_string(rank));
  }
  write_all(ends[0].get(), "\n" + std::string(100'000, 'z'));
  EXPECT_EQ(pump.tail(0), std::string(LogPump::kTailBytes, 'z'));
}

TEST_F(LogPumpTest, TailIsDrainedFromBehindAStuckConsole) {
  Pipe stuck;
  LogPumpOptions own = options();
  own.console_err = stuck.writing.get();
  LogPump pump{own};
  StreamRoute route = to_console(0, false, Stream::err);
  route.keep_tail = true;
  const base::UniqueFd writing = pump.add(route);
  pump.start();
  ASSERT_EQ(::fcntl(writing.get(), F_SETFL, O_NONBLOCK), 0);
  const std::string text = std::string(999, 'x') + "\n";
  Deadline quiet = Deadline::after(milliseconds(300));
  while (!quiet.expired()) {
    if (::write(writing.get(), text.data(), text.size()) > 0) quiet = Deadline::after(milliseconds(300));
  }
  EXPECT_THAT(pump.tail(0), Not(HasSubstr("last words")));  // makes room in the pipe
  write_all(writing.get(), "last words\n");
  EXPECT_THAT(pump.tail(0), HasSubstr("last words\n"));
  pump.finish(milliseconds(100));
}

TEST_F(LogPumpTest, TailsFromSeveralThreadsWhileWritersWrite) {
  LogPump pump{options()};
  std::vector<base::UniqueFd> ends;
  for (int rank = 0; rank < 4; ++rank) ends.push_back(pump.add(to_tail(rank)));
  pump.start();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      for (int i = 0; i < 300; ++i) {
        const std::string line = std::to_string(rank) + ":" + std::to_string(i) + "\n";
        write_all(ends[static_cast<std::size_t>(rank)].get(), line);
        const std::string tail = pump.tail(rank);
        EXPECT_TRUE(tail.ends_with(line)) << tail;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  pump.finish(kGenerous);
  EXPECT_THAT(pump.tail(2), testing::EndsWith("2:299\n"));
}

}  // namespace
}  // namespace ddp::launcher
