// Who is missing in a job, and who waits for whom: a judgement of facts alone.
#pragma once

#include <string>
#include <vector>

#include "diagnostics/hang/rank_facts.hpp"

namespace ddp::diagnostics {

struct JobObservation {
  std::vector<RankFacts> ranks;     ///< ascending, each once
  std::vector<std::string> notes;   ///< what could not be looked at
  std::vector<NcclTrouble> nccl{};  ///< each once
  RankStacks stacks{};
  bool whole = false;  ///< ranks that are not here have ended; else they may be on other hosts
  int world_size() const;
};

/// Joins what hosts found. @param complete whether all hosts of the job were asked.
JobObservation join_hosts(std::vector<HostFacts> hosts, bool complete);

enum class HangAnswer { nothing_hangs, hangs, cannot_tell };

struct HangVerdict {
  struct Wait {
    std::string operation;  ///< "all_reduce #34 of group 'world'", "World::init"
    std::vector<int> waiting;
    std::vector<int> missing;  ///< empty: all have called it
    double age_s = 0;          ///< of the one that waits longest
  };
  HangAnswer answer = HangAnswer::cannot_tell;
  std::string text{};         ///< one line
  std::vector<int> culprits;  ///< whom all others wait for
  bool likely = false;        ///< only guessed by what their processes do
  std::vector<Wait> waits;
};

/// @param after_s how long an operation must have waited to count
HangVerdict judge_hang(const JobObservation& job, double after_s);

/// The same where no flight recorder tells: by what differs among the processes.
HangVerdict judge_processes(const JobObservation& job);

/// Changes a verdict that is only likely, or none, by what NCCL says.
void judge_by_nccl(const JobObservation& job, HangVerdict& verdict);
/// Those of the job's ranks for which others wait in it, as far as their processes are known.
std::vector<int> ranks_behind(const JobObservation& job, const NcclTrouble& trouble);

/// "rank 3 is stopped".
std::string describe_culprits(const JobObservation& job, const std::vector<int>& culprits);

}  // namespace ddp::diagnostics
