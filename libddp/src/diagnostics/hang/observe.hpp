// Looks at the ranks of this host several times, so that what moves differs from what stands still.
#pragma once

#include <atomic>
#include <chrono>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>

#include "diagnostics/hang/process_table.hpp"
#include "diagnostics/hang/rank_facts.hpp"

namespace ddp::diagnostics {

struct Looks {
  int count = 5;
  std::chrono::milliseconds pause{200};
};

/// @param proc "/proc". @param reads if given, whose files are being read; 0: nobody's
HostFacts observe_ranks(const std::string& proc, const std::string& host, const std::vector<FoundRank>& ranks,
                        const Looks& looks, std::atomic<pid_t>* reads = nullptr);

struct LocalObservation {
  HostFacts facts;
  bool whole = false;  ///< all ranks of the job are of this host
};
/// Finds and observes. Files in /proc can block beside a process that hangs in the kernel: then Error(timeout). Throws
/// what ProcessTable::ranks_of throws.
LocalObservation observe_host(const StatusTarget& target, const Looks& looks, Deadline deadline);

}  // namespace ddp::diagnostics
