// The console of a job, on pipes that the test reads, and the nodes that it answers.
#include "coordinator/job_console.hpp"

#include "unit/launcher/logs/log_files.hpp"

namespace ddp::launcher {
namespace {

struct JobConsoleTest : testing::Test {
  JobConsoleTest() { ::signal(SIGPIPE, SIG_IGN); }

  JobConsole& make(int out, int err, milliseconds patience = std::chrono::seconds(2)) {
    return console_.emplace(
        loop_, out, err,
        [this](int link, const control::ConsoleTaken& taken) {
          taken_[{link, taken.error}] += taken.messages;
          EXPECT_EQ(taken.epoch, 2);
        },
        patience);
  }
  static control::ConsoleOutput lines(const std::string& text, bool error = false) {
    return {.epoch = 2, .error = error, .pieces = {{.writer = control::kWholeLines, .text = text}}};
  }
  static control::ConsoleOutput part(int writer, const std::string& text, bool begins, bool ends) {
    return {.epoch = 2,
            .error = false,
            .pieces = {{.writer = writer, .begins = begins, .ends = ends, .prefix = "[p]:", .text = text}}};
  }
  bool taken(int link, std::int64_t messages, bool error = false) {
    const Deadline deadline = Deadline::after(kGenerous);
    while (taken_[{link, error}] < messages && !deadline.expired())
      loop_.run_once(earlier(deadline, Deadline::after(milliseconds(100))));
    return taken_[{link, error}] == messages;
  }

  stream::EventLoop loop_;
  Pipe out_, err_;
  std::map<std::pair<int, bool>, std::int64_t> taken_;
  std::optional<JobConsole> console_;
};

TEST_F(JobConsoleTest, LinesOfNodesStayWholeAndAreAnswered) {
  JobConsole& console = make(out_.writing.get(), err_.writing.get());
  console.write(0, lines("[0]:a\n[1]:b\n"));
  console.write(1, lines("[2]:c\n", true));
  console.write(0, part(1, "long", true, false));
  console.write(1, part(1, "other", true, false));  // another node's writer of the same number
  console.write(0, part(1, "er", false, true));
  console.write(1, part(1, "", false, true));
  EXPECT_TRUE(taken(0, 3));
  EXPECT_TRUE(taken(1, 2));
  EXPECT_TRUE(taken(1, 1, true));
  console_.reset();
  out_.writing.reset();
  err_.writing.reset();
  EXPECT_EQ(read_to_end(out_.reading.get()), "[0]:a\n[1]:b\n[p]:long\n[p]:other\n[p]:er\n");
  EXPECT_EQ(read_to_end(err_.reading.get()), "[2]:c\n");
}

TEST_F(JobConsoleTest, AStoppedReaderDelaysAnswersAndNothingElse) {
  JobConsole& console = make(out_.writing.get(), err_.writing.get());
  const std::string line = std::string(99'999, 'x') + "\n";
  for (int i = 0; i < 10; ++i) console.write(0, lines(line));
  console.write(1, lines("error\n", true));
  EXPECT_TRUE(taken(1, 1, true));  // its console is read by nobody either, but has room
  EXPECT_LT((taken_[{0, false}]), 10);
  const Deadline stuck = Deadline::after(milliseconds(300));
  console.finish([&](auto, auto) { return stuck; });
  EXPECT_TRUE(stuck.expired());
  EXPECT_LT((taken_[{0, false}]), 10);
  EXPECT_EQ(read_bytes(out_.reading.get(), 10 * line.size()).size(), 10 * line.size());
  EXPECT_TRUE(taken(0, 10));
  console.finish([](auto begin, auto) { return Deadline{begin + kGenerous}; });
}

/// As after SIGSTOP: the time has passed before the thread could run.
TEST_F(JobConsoleTest, AThreadThatIsTooSlowForARestWorksOn) {
  JobConsole& console = make(out_.writing.get(), err_.writing.get(), milliseconds(0));
  std::string all;
  for (int i = 0; i < 100; ++i) {
    console.write(0, lines(std::to_string(i) + "\n"));
    all += std::to_string(i) + "\n";
    ASSERT_TRUE(taken(0, i + 1)) << "after rest " << i;
    console.finish([](auto begin, auto) { return Deadline{begin + kGenerous}; });
    console.rest();
  }
  EXPECT_EQ(read_bytes(out_.reading.get(), all.size()), all);
}

TEST_F(JobConsoleTest, WithoutAReaderAllIsTaken) {
  JobConsole& console = make(out_.writing.get(), out_.writing.get());
  out_.reading.reset();
  for (int i = 0; i < 10; ++i) console.write(3, lines(std::string(100'000, 'x') + "\n", i % 2 == 0));
  EXPECT_TRUE(taken(3, 5));
  EXPECT_TRUE(taken(3, 5, true));
}

TEST_F(JobConsoleTest, ItGoesOnAfterARest) {
  JobConsole& console = make(out_.writing.get(), err_.writing.get());
  console.rest();
  console.write(0, lines("one\n"));
  EXPECT_TRUE(taken(0, 1));
  console.rest();
  console.write(0, lines("two\n"));
  EXPECT_TRUE(taken(0, 2));
  EXPECT_EQ(read_bytes(out_.reading.get(), 8), "one\ntwo\n");
}

}  // namespace
}  // namespace ddp::launcher
