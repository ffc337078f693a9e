// Which lines are written, by DDP_LOG_LEVEL, and how they look. The level is read once per process, so each case runs
// in a process of its own.
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <ddp/deadline.hpp>

#include "base/log.hpp"
#include "base/unique_fd.hpp"

namespace ddp::base {
namespace {

/// What a child that logs one line of each level writes to standard error.
std::string output_at(const char* level, int rank = -1) {
  std::array<int, 2> ends{};
  if (::pipe(ends.data()) != 0) return "no pipe";
  UniqueFd read_end{ends[0]};
  UniqueFd write_end{ends[1]};
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(write_end.get(), STDERR_FILENO);
    if (level != nullptr) {
      ::setenv("DDP_LOG_LEVEL", level, 1);
    } else {
      ::unsetenv("DDP_LOG_LEVEL");
    }
    if (rank >= 0) set_log_rank(rank);
    log(LogLevel::debug, "line {}", 1);
    log(LogLevel::info, "line {}", 2);
    log(LogLevel::warning, "line {}", 3);
    log(LogLevel::error, "line {}", 4);
    ::_exit(log_enabled(LogLevel::error) ? 0 : 1);
  }
  write_end.reset();
  std::string text;
  std::array<char, 1024> chunk{};
  for (ssize_t got = 0; (got = ::read(read_end.get(), chunk.data(), chunk.size())) > 0;) {
    text.append(chunk.data(), static_cast<std::size_t>(got));
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return text;
}

constexpr auto kDebug = "[ddp] debug: line 1\n";
constexpr auto kInfo = "[ddp] info: line 2\n";
constexpr auto kWarning = "[ddp] warning: line 3\n";
constexpr auto kError = "[ddp] error: line 4\n";

TEST(Log, LevelDecidesWhatIsWritten) {
  EXPECT_EQ(output_at("debug"), std::string(kDebug) + kInfo + kWarning + kError);
  EXPECT_EQ(output_at("info"), std::string(kInfo) + kWarning + kError);
  EXPECT_EQ(output_at("warning"), std::string(kWarning) + kError);
  EXPECT_EQ(output_at("error"), kError);
  EXPECT_EQ(output_at("off"), "");
}

TEST(Log, WarningsAreWrittenWithoutAnyLevelAndWithABadOne) {
  EXPECT_EQ(output_at(nullptr), std::string(kWarning) + kError);
  EXPECT_EQ(output_at(""), std::string(kWarning) + kError);
  EXPECT_EQ(output_at("loud"), std::string(kWarning) + kError);
}

TEST(Log, LinesNameTheRankOnceItIsKnown) { EXPECT_EQ(output_at("error", 17), "[ddp rank 17] error: line 4\n"); }

}  // namespace

// Lines that programs write past readers that are slow, stuck or gone.

namespace {

constexpr seconds kGenerous{60};

struct Ends {
  UniqueFd reading, writing;
};

Ends make_pipe(int flags = 0) {
  std::array<int, 2> ends{};
  EXPECT_EQ(::pipe2(ends.data(), O_CLOEXEC), 0);
  EXPECT_EQ(::fcntl(ends[1], F_SETFL, flags), 0);
  return {UniqueFd{ends[0]}, UniqueFd{ends[1]}};
}

Ends make_sockets(int type = SOCK_STREAM) {
  std::array<int, 2> ends{};
  EXPECT_EQ(::socketpair(AF_UNIX, type | SOCK_CLOEXEC, 0, ends.data()), 0);
  return {UniqueFd{ends[0]}, UniqueFd{ends[1]}};
}

/// Until nothing more fits.
void fill(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  ASSERT_EQ(::fcntl(fd, F_SETFL, flags | O_NONBLOCK), 0);
  const std::string much(65'536, 'x');
  for (const std::size_t size : {much.size(), std::size_t{1}}) {
    while (::write(fd, much.data(), size) > 0) {
    }
  }
  ASSERT_EQ(::fcntl(fd, F_SETFL, flags), 0);
}

std::string report_of(std::size_t lines) {
  std::string text;
  for (std::size_t i = 0; i < lines; ++i) text += "line " + std::to_string(i) + " of a report\n";
  return text + "its end";
}

/// All until the other end is closed, in small reads with pauses between them.
std::string read_slowly(int fd) {
  std::string text;
  std::array<char, 1500> chunk;
  for (;;) {
    std::this_thread::sleep_for(milliseconds(2));
    const ssize_t size = ::read(fd, chunk.data(), chunk.size());
    if (size <= 0) return text;
    text.append(chunk.data(), static_cast<std::size_t>(size));
  }
}

void expect_whole(Ends ends) {
  const std::string text = report_of(8'000);  // more than pipes and sockets hold
  std::future<std::string> read = std::async(std::launch::async, [&] { return read_slowly(ends.reading.get()); });
  EXPECT_TRUE(write_line(ends.writing.get(), text, kGenerous));
  ends.writing.reset();
  EXPECT_TRUE(read.get() == text + "\n");
}

TEST(StderrLine, ArrivesWholeWhateverTheDescriptorIs) {
  expect_whole(make_pipe());
  expect_whole(make_pipe(O_NONBLOCK));
  expect_whole(make_sockets());
}

TEST(StderrLine, ATextKeepsItsOneNewline) {
  const Ends ends = make_pipe();
  EXPECT_TRUE(write_text(ends.writing.get(), "two\nlines\n", kGenerous));
  std::array<char, 64> got{};
  EXPECT_EQ(::read(ends.reading.get(), got.data(), got.size()), 10);
  EXPECT_STREQ(got.data(), "two\nlines\n");
}

TEST(StderrLine, ASlowReaderMayTakeLongerThanThePatience) {
  Ends ends = make_pipe(O_NONBLOCK);
  fill(ends.writing.get());
  const std::string text = report_of(6'000);
  std::future<std::string> read = std::async(std::launch::async, [&] {
    std::string got;
    std::array<char, 8192> chunk;
    for (;;) {
      std::this_thread::sleep_for(milliseconds(250));  // 16 of them are needed
      const ssize_t size = ::read(ends.reading.get(), chunk.data(), chunk.size());
      if (size <= 0) return got;
      got.append(chunk.data(), static_cast<std::size_t>(size));
    }
  });
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_TRUE(write_line(ends.writing.get(), text, seconds(3)));
  EXPECT_GT(std::chrono::steady_clock::now() - begin, seconds(3));
  ends.writing.reset();
  EXPECT_TRUE(read.get().ends_with(text + "\n"));
}

TEST(StderrLine, AReaderThatNeverReadsCostsThePatienceAndNoMore) {
  for (const int flags : {0, O_NONBLOCK}) {
    const Ends ends = make_pipe(flags);
    const Deadline late = Deadline::after(kGenerous);
    // What the pipe takes is written; the rest is waited for, and never by a write that blocks.
    EXPECT_FALSE(write_line(ends.writing.get(), report_of(8'000), milliseconds(200)));
    EXPECT_FALSE(write_line(ends.writing.get(), "another", milliseconds(200)));
    EXPECT_FALSE(late.expired());
  }
}

TEST(StderrLine, ATerminalThatIsNotReadCostsThePatienceAndNoMore) {
  const UniqueFd master{::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC)};
  ASSERT_TRUE(master && ::grantpt(master.get()) == 0 && ::unlockpt(master.get()) == 0);
  const UniqueFd terminal{::open(::ptsname(master.get()), O_RDWR | O_NOCTTY | O_CLOEXEC)};
  if (!terminal) GTEST_SKIP() << "there are no pseudo-terminals here";
  const Deadline late = Deadline::after(kGenerous);
  EXPECT_FALSE(write_line(terminal.get(), report_of(8'000), milliseconds(200)));
  EXPECT_FALSE(late.expired());
}

TEST(StderrLine, ALineIsWrittenAtOnce) {
  // Packets are what single writes have written.
  const Ends ends = make_sockets(SOCK_DGRAM);
  const std::string line(4'095, 'x');
  ASSERT_TRUE(write_line(ends.writing.get(), line, kGenerous));
  ASSERT_TRUE(write_line(ends.writing.get(), "", kGenerous));
  std::array<char, 8192> chunk;
  EXPECT_EQ(::read(ends.reading.get(), chunk.data(), chunk.size()), 4'096);
  EXPECT_EQ(::read(ends.reading.get(), chunk.data(), chunk.size()), 1);
  // What is longer is cut behind a line.
  ASSERT_TRUE(write_line(ends.writing.get(), std::string(3'000, 'x') + "\n" + std::string(3'000, 'y'), kGenerous));
  EXPECT_EQ(::read(ends.reading.get(), chunk.data(), chunk.size()), 3'001);
  EXPECT_EQ(::read(ends.reading.get(), chunk.data(), chunk.size()), 3'001);
}

TEST(StderrLine, NothingIsWaitedForOnceTheStopDescriptorIsReadable) {
  const Ends ends = make_pipe();
  const UniqueFd stop{::eventfd(1, EFD_CLOEXEC)};
  const Deadline late = Deadline::after(kGenerous);
  EXPECT_TRUE(write_line(ends.writing.get(), "there is room", std::chrono::hours(1), stop.get()));
  fill(ends.writing.get());
  EXPECT_FALSE(write_line(ends.writing.get(), "there is none", std::chrono::hours(1), stop.get()));
  EXPECT_FALSE(late.expired());
}

TEST(StderrLine, AReaderThatIsGoneDoesNoHarm) {
  // No program of libddp ignores SIGPIPE before it has read its command line.
  struct sigaction deadly {};
  struct sigaction before {};
  deadly.sa_handler = SIG_DFL;
  ASSERT_EQ(::sigaction(SIGPIPE, &deadly, &before), 0);
  Ends pipe = make_pipe();
  pipe.reading.reset();
  EXPECT_FALSE(write_line(pipe.writing.get(), "not read", kGenerous));
  Ends sockets = make_sockets();
  sockets.reading.reset();
  EXPECT_FALSE(write_line(sockets.writing.get(), "not read", kGenerous));
  EXPECT_FALSE(write_line(-1, "no such descriptor", milliseconds(0)));
  EXPECT_EQ(::sigaction(SIGPIPE, &before, nullptr), 0);
}

}  // namespace

}  // namespace ddp::base
