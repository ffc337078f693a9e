// Every kind of console: nothing waits, nothing is torn, and a shared descriptor's flags stay as they were.
#include <pty.h>
#include <sys/socket.h>
#include <termios.h>

#include "logs/console.hpp"
#include "unit/launcher/logs/log_files.hpp"

namespace ddp::launcher {
namespace {

struct ConsoleSinkTest : testing::Test {
  ConsoleSinkTest() { ::signal(SIGPIPE, SIG_IGN); }
  ConsoleSink sink(int fd) {
    return ConsoleSink{fd, "standard output", [this](const std::string& line) { complaints_.push_back(line); }};
  }
  /// Appends more than any console buffers, reads it all, and compares.
  void expect_delivery(ConsoleSink& sink, int reading) {
    std::string sent;
    for (int i = 0; i < 40'000; ++i) sent += "line " + std::to_string(i) + "\n";
    const int one = 1;
    sink.append(&one, sent);
    sink.flush();
    EXPECT_FALSE(sink.idle());
    ASSERT_TRUE(sink.awaited());
    std::string got;
    while (got.size() < sent.size()) {
      const std::string part = read_bytes(reading, std::min<std::size_t>(1000, sent.size() - got.size()));
      ASSERT_FALSE(part.empty());
      got += part;
      sink.flush();
    }
    EXPECT_TRUE(got == sent);
    EXPECT_TRUE(sink.idle());
    EXPECT_FALSE(sink.awaited());
  }
  std::vector<std::string> complaints_;
};

TEST_F(ConsoleSinkTest, PipeStaysBlockingForOthers) {
  Pipe pipe;
  ConsoleSink console = sink(pipe.writing.get());
  expect_delivery(console, pipe.reading.get());
  EXPECT_EQ(::fcntl(pipe.writing.get(), F_GETFL) & O_NONBLOCK, 0);
}

TEST_F(ConsoleSinkTest, NonBlockingPipeStaysNonBlocking) {
  Pipe pipe;
  ASSERT_EQ(::fcntl(pipe.writing.get(), F_SETFL, O_NONBLOCK), 0);
  ConsoleSink console = sink(pipe.writing.get());
  expect_delivery(console, pipe.reading.get());
  EXPECT_NE(::fcntl(pipe.writing.get(), F_GETFL) & O_NONBLOCK, 0);
}

TEST_F(ConsoleSinkTest, Socket) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()), 0);
  const base::UniqueFd reading{ends[0]};
  const base::UniqueFd writing{ends[1]};
  ConsoleSink console = sink(writing.get());
  expect_delivery(console, reading.get());
  EXPECT_EQ(::fcntl(writing.get(), F_GETFL) & O_NONBLOCK, 0);
}

TEST_F(ConsoleSinkTest, Terminal) {
  int master = -1;
  int slave = -1;
  ASSERT_EQ(::openpty(&master, &slave, nullptr, nullptr, nullptr), 0);
  const base::UniqueFd reading{master};
  const base::UniqueFd writing{slave};
  termios mode{};
  ASSERT_EQ(::tcgetattr(slave, &mode), 0);
  ::cfmakeraw(&mode);  // no "\r" before each "\n"
  ASSERT_EQ(::tcsetattr(slave, TCSANOW, &mode), 0);
  ConsoleSink console = sink(slave);
  expect_delivery(console, master);
  EXPECT_EQ(::fcntl(slave, F_GETFL) & O_NONBLOCK, 0);
}

TEST_F(ConsoleSinkTest, PipeThatCannotBeOpenedAnew) {
  // A pipe without a reader cannot (ENXIO); then it gets one.
  const TemporaryFolder folder;
  const std::string path = folder / "fifo";
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  base::UniqueFd reading{::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC)};
  const base::UniqueFd writing{::open(path.c_str(), O_WRONLY | O_CLOEXEC)};
  ASSERT_TRUE(writing);
  reading.reset();
  ConsoleSink console = sink(writing.get());
  reading.reset(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  expect_delivery(console, reading.get());
  EXPECT_EQ(::fcntl(writing.get(), F_GETFL) & O_NONBLOCK, 0);
}

TEST_F(ConsoleSinkTest, ReaderThatGoesAwayEndsTheConsole) {
  Pipe pipe;
  ConsoleSink console = sink(pipe.writing.get());
  pipe.reading.reset();
  const int one = 1;
  console.append(&one, "nobody reads this\n");
  console.flush();
  EXPECT_TRUE(console.idle());
  EXPECT_FALSE(console.awaited());
  console.append(&one, std::string(2 * ConsoleSink::kFullBytes, 'x'));
  EXPECT_FALSE(console.full());
  EXPECT_EQ(console.abandoned_bytes(), 0U);
}

TEST_F(ConsoleSinkTest, ClosedDescriptorIsNoConsole) {
  ConsoleSink console = sink(-1);
  const int one = 1;
  console.append(&one, "x\n");
  console.flush();
  EXPECT_TRUE(console.idle());
}

TEST_F(ConsoleSinkTest, FullDiskUnderTheConsole) {
  const base::UniqueFd full{::open("/dev/full", O_WRONLY | O_CLOEXEC)};
  ConsoleSink console = sink(full.get());
  const int one = 1;
  for (int i = 0; i < 3; ++i) {
    console.append(&one, "x\n");
    console.flush();
    EXPECT_TRUE(console.idle());
  }
  ASSERT_EQ(complaints_.size(), 1U);
  EXPECT_THAT(complaints_[0], HasSubstr("standard output: No space left on device [ENOSPC (28)]"));
}

TEST_F(ConsoleSinkTest, FileIsAppendedTo) {
  const TemporaryFolder folder;
  const base::UniqueFd file{::open((folder / "job.log").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600)};
  write_all(file.get(), "before\n");
  ConsoleSink console = sink(file.get());
  const int one = 1;
  console.append(&one, "from a rank\n");
  console.flush();
  write_all(file.get(), "after\n");
  EXPECT_EQ(content_of(folder / "job.log"), "before\nfrom a rank\nafter\n");
}

TEST_F(ConsoleSinkTest, AbandonedConsoleCountsWhatItMisses) {
  Pipe pipe;
  ConsoleSink console = sink(pipe.writing.get());
  const int one = 1;
  const std::string much(200'000, 'x');
  console.append(&one, much);
  console.flush();
  const std::size_t left = console.queued();
  ASSERT_GT(left, 0U);
  console.abandon();
  console.append(&one, "12345");
  EXPECT_TRUE(console.idle());
  EXPECT_FALSE(console.awaited());
  EXPECT_EQ(console.abandoned_bytes(), left + 5);
}

TEST_F(ConsoleSinkTest, RecognizesTheSameTarget) {
  Pipe one;
  Pipe other;
  const base::UniqueFd copy{::dup(one.writing.get())};
  EXPECT_TRUE(ConsoleSink::same_target(one.writing.get(), copy.get()));
  EXPECT_FALSE(ConsoleSink::same_target(one.writing.get(), other.writing.get()));
  EXPECT_FALSE(ConsoleSink::same_target(-1, -1));
}

TEST_F(ConsoleSinkTest, LongLinesOfTwoWritersStayApart) {
  Pipe pipe;
  ConsoleSink console = sink(pipe.writing.get());
  const int a = 0;
  const int b = 0;
  console.append_line(&a, "[a]", {.text = "one", .begins = true, .ends = false});
  console.append_line(&a, "[a]", {.text = " two", .begins = false, .ends = false});
  console.append_line(&b, "[b]", {.text = "other", .begins = true, .ends = true});
  console.append_line(&a, "[a]", {.text = " three", .begins = false, .ends = true});
  console.append_line(&a, "[a]", {.text = "long", .begins = true, .ends = false});
  console.append_line(&b, "[b]", {.text = "again", .begins = true, .ends = true});
  console.append_line(&a, "[a]", {.text = "", .begins = false, .ends = true});
  console.append(&a, "unprefixed");
  console.append_line(&b, "[b]", {.text = "last", .begins = true, .ends = true});
  console.flush();
  pipe.writing.reset();
  const std::string expected = "[a]one two\n[b]other\n[a] three\n[a]long\n[b]again\nunprefixed\n[b]last\n";
  EXPECT_EQ(read_bytes(pipe.reading.get(), expected.size()), expected);
}

struct RemoteConsoleTest : testing::Test {
  /// What has come, with the number of messages.
  std::pair<std::string, std::int64_t> receive() {
    std::pair<std::string, std::int64_t> got;
    for (const control::Message& message : job_.receive()) {
      ++got.second;
      for (const control::ConsolePiece& piece : std::get<control::ConsoleOutput>(message).pieces)
        got.first += piece.text + (piece.writer == control::kWholeLines || piece.unprefixed ? "" : "\n");
    }
    return got;
  }
  control::ConnectionPair pair_ = control::make_pair();
  control::Connection node_{std::move(pair_.first), "the job's console"};
  control::Connection job_{std::move(pair_.second), "a node"};
};

TEST_F(RemoteConsoleTest, LittleMoreThanTheWindowIsOnItsWay) {
  constexpr std::size_t kWindow = 4'000;
  for (const bool raw : {false, true}) {
    RemoteConsole console{node_, 0, false, kWindow, "standard output", [] { return nullptr; }};
    std::string sent;
    for (int i = 0; i < 1'000; ++i) {
      const std::string line = fmt::format("line {}", i);
      if (!raw) console.append_line(&sent, "", {.text = line, .begins = true, .ends = true});
      sent += line + "\n";
    }
    if (raw) console.append(&sent, sent);
    std::string all;
    for (const Deadline limit = Deadline::after(std::chrono::seconds(60)); all.size() < sent.size();) {
      ASSERT_FALSE(limit.expired());
      console.flush();
      const auto [text, messages] = receive();
      EXPECT_LE(text.size(), kWindow + kWindow / 4 + 10);  // a message, and a line
      all += text;
      console.taken(messages);
    }
    EXPECT_TRUE(all == sent);
  }
}

TEST_F(RemoteConsoleTest, NoMessageEndsWithinALine) {
  RemoteConsole console{node_, 0, false, 400, "standard output", [] { return nullptr; }};
  std::string sent;
  for (const std::size_t length : {30, 90, 99, 100, 500, 1, 250}) sent += std::string(length, 'x') + "\n";
  console.append(&sent, sent);
  std::string all;
  for (const Deadline limit = Deadline::after(std::chrono::seconds(60)); all.size() < sent.size();) {
    ASSERT_FALSE(limit.expired());
    console.flush();
    for (const control::Message& message : job_.receive()) {
      for (const control::ConsolePiece& piece : std::get<control::ConsoleOutput>(message).pieces) {
        EXPECT_EQ(piece.text.back(), '\n');
        all += piece.text;
      }
      console.taken(1);
    }
  }
  EXPECT_EQ(all, sent);
}

TEST_F(RemoteConsoleTest, ALineThatIsLongerThanTheWindowGoesAlone) {
  RemoteConsole console{node_, 0, false, 100, "standard output", [] { return nullptr; }};
  const std::string line(1'000, 'x');
  for (int i = 0; i < 2; ++i) console.append_line(&line, "", {.text = line, .begins = true, .ends = true});
  console.flush();
  EXPECT_EQ(receive(), std::pair(line + "\n", std::int64_t{1}));
  console.flush();
  EXPECT_EQ(receive().second, 0);
  console.taken(1);
  console.flush();
  EXPECT_EQ(receive(), std::pair(line + "\n", std::int64_t{1}));
}

}  // namespace

}  // namespace ddp::launcher
