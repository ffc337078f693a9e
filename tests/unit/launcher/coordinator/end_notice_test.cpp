// Whom a user waits for, in time and no earlier.
#include "coordinator/end_notice.hpp"

namespace ddp::launcher {
namespace {

struct EndNoticeTest : testing::Test {
  std::optional<std::string> take(std::chrono::milliseconds since_start, const std::vector<RankName>& left) {
    return notice_.take(start_ + since_start, left);
  }
  void begin(int signal, std::chrono::milliseconds limit = 30s) {
    notice_.begin("CAUSE", signal, Deadline{start_ + limit}, start_);
  }

  const EndNotice::Time start_{1000s};
  const std::vector<RankName> ranks_{{.rank = 0, .local_rank = 0, .pid = 10, .host = "n0"},
                                     {.rank = 1, .local_rank = 1, .pid = 11, .host = "n0"},
                                     {.rank = 2, .local_rank = 0, .pid = 10, .host = "n1"}};
  EndNotice notice_;
};

TEST_F(EndNoticeTest, SaysWhomItWaitsForAndThenWhoIsLeft) {
  begin(SIGINT);
  EXPECT_EQ(notice_.next_deadline()->when(), start_ + 1s);
  EXPECT_FALSE(take(999ms, ranks_));
  EXPECT_EQ(take(1s, ranks_), "CAUSE: waiting up to 29 s for 3 ranks on n0, n1; press Ctrl-C again to kill them");
  EXPECT_FALSE(take(5s, ranks_));
  EXPECT_EQ(take(6s, {ranks_[2]}), "CAUSE: still running: rank 2 (pid 10 on n1); SIGKILL follows in 24 s");
  EXPECT_FALSE(notice_.next_deadline());
}

TEST_F(EndNoticeTest, IsQuietWhereAllEndAtOnce) {
  EXPECT_FALSE(take(1s, ranks_));
  begin(SIGINT);
  EXPECT_FALSE(take(1s, {}));
  begin(SIGINT, 500ms);
  EXPECT_FALSE(take(1s, ranks_));
  begin(SIGINT);
  notice_.stop();
  EXPECT_FALSE(take(1s, ranks_));
}

TEST_F(EndNoticeTest, SaysWhatTheNextSignalDoes) {
  begin(SIGQUIT);
  EXPECT_THAT(*take(1s, ranks_), HasSubstr("press Ctrl-\\ again to read their stacks and kill them"));
  begin(SIGTERM);
  EXPECT_THAT(*take(1s, ranks_), HasSubstr("press Ctrl-C twice to kill them now"));
}

TEST_F(EndNoticeTest, NamesAFewOfMany) {
  std::vector<RankName> many;
  for (int i = 0; i < 100; ++i) many.push_back({.rank = i, .local_rank = 0, .pid = i, .host = "n" + std::to_string(i)});
  begin(SIGINT);
  EXPECT_THAT(*take(1s, many),
              AllOf(HasSubstr("100 ranks on n0, n1"), HasSubstr("n7 and 92 more nodes"), Not(HasSubstr("n8"))));
  EXPECT_THAT(*take(6s, many), AllOf(HasSubstr("rank 7 (pid 7 on n7) and 92 more"), Not(HasSubstr("rank 8"))));
}

}  // namespace
}  // namespace ddp::launcher
