// The text that people read when something fails.
#include <ddp/error.hpp>

#include "base/errors.hpp"

namespace ddp {
namespace {

Error sample() {
  return Error{{.code = ErrorCode::peer_lost,
                .attempted = "all_reduce #7",
                .cause = "two ranks died",
                .native = "ECONNRESET (104)",
                .ranks = {1, 3, 4, 5},
                .hint = "look at their output"}};
}

TEST(FormatRanks, JoinsRunsOfThreeAndMore) {
  EXPECT_EQ(format_ranks({}), "");
  EXPECT_EQ(format_ranks({0}), "rank 0");
  EXPECT_EQ(format_ranks({3, 4}), "ranks 3, 4");
  EXPECT_EQ(format_ranks({3, 4, 5}), "ranks 3-5");
  EXPECT_EQ(format_ranks({1, 3, 4, 5}), "ranks 1, 3-5");
  EXPECT_EQ(format_ranks({0, 1, 2, 3, 8, 10, 11, 20, 21, 22}), "ranks 0-3, 8, 10, 11, 20-22");
  EXPECT_EQ(format_ranks({0, 2, 4}), "ranks 0, 2, 4");
  constexpr int kLargest = std::numeric_limits<int>::max();
  EXPECT_EQ(format_ranks({kLargest - 1, kLargest, std::numeric_limits<int>::min()}),
            "ranks 2147483646, 2147483647, -2147483648");
}

TEST(ErrorText, SaysEverythingInOneLine) {
  EXPECT_STREQ(sample().what(),
               "all_reduce #7: two ranks died [ECONNRESET (104)] (ranks 1, 3-5); look at their output");
}

TEST(ErrorText, LeavesOutWhatIsNotKnown) {
  const Error error{{.code = ErrorCode::system, .attempted = "a", .cause = "b"}};
  EXPECT_STREQ(error.what(), "a: b");
  const Error with_rank{{.code = ErrorCode::system, .attempted = "a", .cause = "b", .ranks = {2}}};
  EXPECT_STREQ(with_rank.what(), "a: b (rank 2)");
}

TEST(ErrorText, CopyKeepsEverything) {
  const Error original = sample();
  const Error copy = original;  // NOLINT(performance-unnecessary-copy-initialization): copying is what is tested
  EXPECT_EQ(copy.code(), ErrorCode::peer_lost);
  EXPECT_EQ(copy.attempted(), "all_reduce #7");
  EXPECT_EQ(copy.cause(), "two ranks died");
  EXPECT_EQ(copy.native(), "ECONNRESET (104)");
  EXPECT_EQ(copy.ranks(), (std::vector<int>{1, 3, 4, 5}));
  EXPECT_EQ(copy.hint(), "look at their output");
  EXPECT_STREQ(copy.what(), original.what());
  EXPECT_NE(copy.what(), original.what()) << "a copy must own its text";
}

TEST(ErrorCodes, HaveDistinctNames) {
  std::set<std::string_view> names;
  for (int code = 0; code <= static_cast<int>(ErrorCode::aborted); ++code) {
    names.insert(to_string(static_cast<ErrorCode>(code)));
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(ErrorCode::aborted) + 1);
  EXPECT_FALSE(names.contains("unknown"));
  EXPECT_EQ(to_string(ErrorCode::invalid_argument), "invalid_argument");
  EXPECT_EQ(to_string(ErrorCode::aborted), "aborted");
  EXPECT_EQ(to_string(static_cast<ErrorCode>(99)), "unknown");
}

TEST(SystemError, NamesErrno) {
  const Error error = base::system_error("connecting", ECONNREFUSED, "is it running?", ErrorCode::unavailable);
  EXPECT_EQ(error.code(), ErrorCode::unavailable);
  EXPECT_STREQ(error.what(), "connecting: Connection refused [ECONNREFUSED (111)]; is it running?");
  EXPECT_EQ(base::system_error("x", EPIPE).code(), ErrorCode::system);
}

TEST(SystemError, HasAnAnswerForNumbersThatNobodyDefined) {
  EXPECT_EQ(base::errno_name(4711), "errno 4711");
  EXPECT_EQ(base::errno_text(4711), "unknown error 4711");
}

}  // namespace
}  // namespace ddp
