// Whose exception is in a step's output, where tracebacks of several ranks are mixed.
#include "step_program/last_words.hpp"

#include "base/unique_fd.hpp"

namespace ddp::srun_plugin {
namespace {

std::string traceback(const std::string& prefix, const std::string& exception) {
  return prefix + "Traceback (most recent call last):\n" + prefix + "  File \"train.py\", line 3, in <module>\n" +
         prefix + "    train()\n" + prefix + exception + "\n";
}

TEST(LastWords, LabelsNameTheRank) {
  const std::string torchs = traceback("[rank1]: ", "RuntimeError: closed by peer") +
                             traceback("[rank12]: ", "ValueError: bad") + traceback("[rank2]: ", "KeyError: 'x'");
  EXPECT_EQ(exception_of(torchs, 12), "ValueError: bad");
  EXPECT_EQ(exception_of(torchs, 2), "KeyError: 'x'");
  EXPECT_EQ(exception_of(torchs, 3), "");
  const std::string sruns = traceback(" 1: ", "A: a") + traceback("12: ", "B: b") + traceback(" 2: [rank2]: ", "C: c");
  EXPECT_EQ(exception_of(sruns, 1), "A: a");
  EXPECT_EQ(exception_of(sruns, 12), "B: b");
  EXPECT_EQ(exception_of(sruns, 2), "C: c");
}

TEST(LastWords, WithoutLabelsItMustBeTheOnlyOne) {
  EXPECT_EQ(exception_of("epoch 1\n" + traceback("", "ValueError: bad"), 3), "ValueError: bad");
  EXPECT_EQ(exception_of(traceback("", "ValueError: bad") + "x\n" + traceback("", "ValueError: bad"), 3),
            "ValueError: bad");
  EXPECT_EQ(exception_of(traceback("", "ValueError: bad") + traceback("", "KeyError: 1"), 3), "") << "whose is which?";
  EXPECT_EQ(exception_of(traceback("", "A: handled") + traceback("[rank3]: ", "B: b"), 3), "B: b");
  EXPECT_EQ(exception_of(traceback("", "KeyError: 1") +
                             "\nDuring handling of the above exception, another exception occurred:\n\n" +
                             traceback("", "ValueError: bad"),
                         3),
            "ValueError: bad");
  EXPECT_EQ(exception_of("no traceback\n", 0), "");
  EXPECT_EQ(exception_of("", 0), "");
}

TEST(LastWords, AreReadAgainFromAFileBehindWhatWasThereBefore) {
  std::string path = testing::TempDir() + "last words-XXXXXX";
  base::UniqueFd made{::mkstemp(path.data())};
  const std::string before = traceback("", "Old: before the step");
  const std::string during = traceback("", "New: of the step");
  ASSERT_EQ(::write(made.get(), before.data(), before.size()), static_cast<ssize_t>(before.size()));
  const base::UniqueFd file{::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC)};
  const LastWords words(file.get());
  EXPECT_EQ(words.exception(0), "");
  ASSERT_EQ(::write(file.get(), during.data(), during.size()), static_cast<ssize_t>(during.size()));
  EXPECT_EQ(words.exception(0), "New: of the step");
  ::unlink(path.c_str());
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  EXPECT_EQ(LastWords(ends[1]).exception(0), "");
  ::close(ends[0]);
  ::close(ends[1]);
}

}  // namespace
}  // namespace ddp::srun_plugin
