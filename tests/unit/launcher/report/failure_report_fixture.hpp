// Failures of ranks and nodes, as parts of outcomes for tests of the report about them.
#pragma once

#include "report/failure_report.hpp"

namespace ddp::launcher::test {

inline const ReportContext kContext{.program = "train", .world_size = 4};
inline const std::chrono::system_clock::time_point kTime{std::chrono::seconds(1'700'000'000)};

inline RankName name(int rank) { return {.rank = rank, .local_rank = rank % 8, .pid = 100 + rank, .host = "node1"}; }

inline RankFailure failure(int rank, int code, bool by_signal = false) {
  return {.name = name(rank),
          .end = RankEnd{.code = code, .by_signal = by_signal, .core_dumped = by_signal, .time = kTime},
          .time = kTime};
}

inline NodeFailure lost_node(std::chrono::seconds after = {}) {
  return {.host = "node7",
          .node_rank = 7,
          .num_ranks = 8,
          .message = "the connection to ddprun's agent (pid 7) was lost\nis the node up?",
          .exit_status = 1,
          .time = kTime + after};
}

inline EarlyEnd early(int rank, milliseconds before) {
  return {.name = name(rank), .before_failure = before, .time = kTime};
}

/// How often @p part is in @p text.
inline std::size_t count(const std::string& text, const std::string& part) {
  std::size_t number = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++number;
  return number;
}

}  // namespace ddp::launcher::test
