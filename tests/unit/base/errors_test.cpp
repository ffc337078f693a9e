// What a Python program failed with is found in whatever its last lines are.
#include "base/errors.hpp"

namespace ddp::base {
namespace {

const std::string kFrames =
    "  File \"a.py\", line 5, in <module>\n"
    "    f()\n"
    "    ~^^\n"
    "  File \"a.py\", line 2, in f\n"
    "    raise ValueError('bad')\n";

TEST(ExceptionLine, IsTheFirstBelowTheFrames) {
  EXPECT_EQ(exception_line("loading\nTraceback (most recent call last):\n" + kFrames + "ValueError: bad\nloss\n"),
            "ValueError: bad");
}

TEST(ExceptionLine, TheBeginningMayBeCutOff) {
  EXPECT_EQ(exception_line(kFrames + "ValueError: bad"), "ValueError: bad");
}

TEST(ExceptionLine, OtherLinesMayFollow) {
  EXPECT_EQ(exception_line(kFrames + "ValueError: bad\nWarning: the group was not destroyed\n"), "ValueError: bad");
}

TEST(ExceptionLine, TheLastOfSeveralCounts) {
  EXPECT_EQ(exception_line(kFrames +
                           "KeyError: 'a'\n\nDuring handling of the above exception, another exception "
                           "occurred:\n\nTraceback (most recent call last):\n" +
                           kFrames + "ValueError: bad\n"),
            "ValueError: bad");
}

TEST(ExceptionLine, TorchPutsTheRankBeforeEachLine) {
  EXPECT_EQ(exception_line("[rank1]: Traceback (most recent call last):\n"
                           "[rank1]:   File \"a.py\", line 5, in <module>\n"
                           "[rank1]:     f()\n"
                           "a line between\n"
                           "[rank1]: RuntimeError: Connection closed by peer\n"),
            "RuntimeError: Connection closed by peer");
}

TEST(ExceptionLine, ThereMayBeNone) {
  for (const char* text : {"", "\n", "out of luck\n", "  File \"a.py\", line 5, in f",
                           "  File \"a.py\", line 5\n  more\n", "see a.py\", line 5\nno traceback\n"}) {
    EXPECT_EQ(exception_line(text), "") << text;
  }
}

}  // namespace

}  // namespace ddp::base
