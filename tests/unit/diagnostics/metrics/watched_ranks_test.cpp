// Ranks that a launcher tells of one by one, and what /proc adds.
#include "diagnostics/metrics/watched_ranks.hpp"

namespace ddp::diagnostics {
namespace {

std::string page_of(WatchedRanks& ranks) {
  MetricsPage page("17.0", "n1");
  ranks.add_to(page);
  return page.text();
}

TEST(WatchedRanks, AStoppedOneIsKnownByItsProcess) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::raise(SIGSTOP);
    ::_exit(0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
  WatchedRanks ranks;
  ranks.begin(3);
  ranks.started(7, child);
  ranks.started(2, ::getpid());
  const std::string text = page_of(ranks);
  EXPECT_THAT(text, HasSubstr(R"(state="starting"} 1)"));
  EXPECT_THAT(text, HasSubstr(R"(state="running"} 1)"));
  EXPECT_THAT(text, HasSubstr(R"(state="stopped"} 1)"));
  EXPECT_THAT(text, HasSubstr(R"(ddp_rank_running{job="17.0",node="n1",rank="7"} 1)"));
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ranks.ended(7, SIGKILL, true);
  ranks.ended(5, 0, false);  // it ended before anybody said that it began
  ranks.started(5, child);
  const std::string later = page_of(ranks);
  EXPECT_THAT(later, HasSubstr(R"(state="starting"} 0)"));
  EXPECT_THAT(later, HasSubstr(R"(state="failed"} 1)"));
  EXPECT_THAT(later, HasSubstr(R"(state="ended"} 1)"));
  EXPECT_THAT(later, HasSubstr(R"(code="",signal="SIGKILL"} 1)"));
  EXPECT_THAT(later, HasSubstr(R"(ddp_rank_running{job="17.0",node="n1",rank="7"} 0)"));
  EXPECT_THAT(later, Not(HasSubstr(R"(ddp_rank_cpu_seconds_total{job="17.0",node="n1",rank="7"})")));
}

}  // namespace
}  // namespace ddp::diagnostics
