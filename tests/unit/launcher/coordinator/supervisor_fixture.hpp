// A Supervisor of three ranks on two nodes, and short names for what happens to them, at made-up times.
#pragma once

#include "coordinator/supervisor.hpp"

namespace ddp::launcher::test {

using std::chrono::seconds;

inline constexpr auto kGroups = SignalOrder::Target::groups;

struct SupervisorTest : testing::Test {
  static Moment at(milliseconds since_start) {
    return {.steady = Deadline::Clock::time_point{seconds(1000)} + since_start,
            .wall = std::chrono::system_clock::time_point{seconds(5000)} + since_start};
  }
  static RankEnd exited(int code) { return {.code = code, .by_signal = false, .core_dumped = false}; }
  static RankEnd died(int signal) { return {.code = signal, .by_signal = true, .core_dumped = false}; }
  static SignalOrder to_groups(int signal) { return {.target = kGroups, .signal = signal}; }

  static NodeFailure lost(int node_rank, int num_ranks, milliseconds when) {
    return {.host = "n" + std::to_string(node_rank),
            .node_rank = node_rank,
            .num_ranks = num_ranks,
            .message = "the agent was lost",
            .exit_status = 9,
            .time = at(when).wall};
  }
  static SupervisionLimits limits() {
    return {.failure_grace = seconds(2), .shutdown_timeout = seconds(30), .kill_patience = seconds(10)};
  }
  static SignalMeaning signals() {
    return {.ending = {SIGTERM, SIGINT, SIGHUP, SIGQUIT}, .forwarded = {SIGUSR1, SIGUSR2, SIGTERM}};
  }
  SignalOrders end(int rank, const RankEnd& how, milliseconds when) {
    RankEnd timed = how;
    timed.time = at(when).wall;
    return supervisor_.rank_ended(rank, timed, {}, at(when));
  }

  // Two nodes: ranks 0 and 1, and rank 2.
  Supervisor supervisor_{{{.rank = 0, .local_rank = 0, .pid = 10, .host = "n0"},
                          {.rank = 1, .local_rank = 1, .pid = 11, .host = "n0"},
                          {.rank = 2, .local_rank = 0, .pid = 10, .host = "n1"}},
                         limits(),
                         signals()};
};

}  // namespace ddp::launcher::test
