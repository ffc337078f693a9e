// What failed ranks left is gathered in order, and never waited for longer than the patience.
#include "agent/trace_gatherer.hpp"

#include <poll.h>
#include <sys/resource.h>

#include <iostream>

#include "base/socket.hpp"
#include "pmix_server/scratch_directory.hpp"

namespace ddp::launcher {
namespace {

control::RankEnded ended(int local_rank) { return {.epoch = 1, .local_rank = local_rank}; }
RankTraces tail(std::string text) { return {.stderr_tail = std::move(text)}; }

std::vector<TraceGatherer::Gathered> wait_for(TraceGatherer& gatherer, std::size_t count) {
  std::vector<TraceGatherer::Gathered> all;
  const Deadline limit = Deadline::after(20s);
  while (all.size() < count && !limit.expired()) {
    if (const auto next = gatherer.next_deadline()) base::wait_for(gatherer.fd(), POLLIN, earlier(limit, *next));
    for (auto& each : gatherer.take()) all.push_back(std::move(each));
  }
  return all;
}

TEST(TraceGathererTest, TracesComeInTheOrderOfTheEnds) {
  TraceGatherer gatherer{[](int local, const TraceGatherer::Add& add) { add(tail("of " + std::to_string(local))); },
                         1h};
  EXPECT_FALSE(gatherer.next_deadline());
  auto killed = ended(2);
  killed.traces.oom = "out of memory";
  gatherer.gather(killed);
  gatherer.gather(ended(0));
  const auto all = wait_for(gatherer, 2);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].end.local_rank, 2);
  EXPECT_EQ(all[0].end.traces.stderr_tail, "of 2");
  EXPECT_EQ(all[0].end.traces.oom, "out of memory");
  EXPECT_FALSE(all[0].late);
  EXPECT_EQ(all[1].end.traces.stderr_tail, "of 0");
  EXPECT_THAT(gatherer.take(), IsEmpty());
}

// A pipe without a writer is what a file on a dead file server is: opening it waits.
TEST(TraceGathererTest, AFileThatHangsCostsThePatienceOnceForAllRanks) {
  const ScratchDirectory folder{testing::TempDir()};
  const std::string pipe = folder.path() + "/error.json";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::promise<void> done;
  const auto began = Deadline::Clock::now();
  {
    TraceGatherer gatherer{[&](int local, const TraceGatherer::Add& add) {
                             add(tail("of " + std::to_string(local)));
                             std::string text;
                             std::getline(std::ifstream{pipe}, text);
                             done.set_value();
                           },
                           300ms};
    gatherer.gather(ended(0));
    gatherer.gather(ended(1));
    EXPECT_THAT(gatherer.take(), IsEmpty());
    const auto all = wait_for(gatherer, 2);
    ASSERT_EQ(all.size(), 2U);
    EXPECT_TRUE(all[0].late);
    EXPECT_EQ(all[0].end.traces.stderr_tail, "of 0") << "what had been read is told";
    EXPECT_TRUE(all[1].late);
    EXPECT_GE(Deadline::Clock::now() - began, 300ms);
  }
  std::ofstream{pipe} << "late\n";  // the thread ends, though its object is gone
  EXPECT_EQ(done.get_future().wait_for(20s), std::future_status::ready);
}

TEST(TraceGathererTest, AFailureToReadIsNoFailureToReport) {
  TraceGatherer gatherer{[](int, const TraceGatherer::Add&) { throw std::runtime_error("no memory"); }, 1h};
  gatherer.gather(ended(0));
  EXPECT_EQ(wait_for(gatherer, 1).size(), 1U);
}

/// Exits 0 where an end comes without a thread, as a user at the limit of processes, whom root is not subject to.
void gather_at_the_limit_of_processes() {
  constexpr uid_t kNobody = 65534;
  constexpr int kNotTested = 77;
  const rlimit none{.rlim_cur = 0, .rlim_max = 0};
  if (::geteuid() == 0 && ::setresuid(kNobody, kNobody, kNobody) != 0) ::_exit(kNotTested);
  if (::setrlimit(RLIMIT_NPROC, &none) != 0) ::_exit(kNotTested);
  TraceGatherer gatherer{[](int, const TraceGatherer::Add&) {}, 1h};
  auto killed = ended(2);
  killed.traces.oom = "out of memory";
  gatherer.gather(killed);
  gatherer.gather(ended(3));
  const auto all = wait_for(gatherer, 2);
  const bool right = all.size() == 2 && all[0].end.local_rank == 2 && all[0].end.traces.oom == "out of memory" &&
                     !all[0].late && all[1].end.local_rank == 3;
  if (right) std::cerr << all[0].failure << '\n';
  ::_exit(right ? 0 : 1);
}

TEST(TraceGathererDeathTest, WithoutAThreadTheEndIsStillTold) {
  EXPECT_EXIT(
      gather_at_the_limit_of_processes(),
      [](int status) { return WIFEXITED(status) && (WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == 77); },
      "starting a thread.*EAGAIN|^$");
}

}  // namespace
}  // namespace ddp::launcher
