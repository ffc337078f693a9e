// The connection of this process to its PMIx server: PMIx_Init, the job's facts, PMIx_Finalize.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <pmix.h>

#include <ddp/deadline.hpp>

#include "base/env_table.hpp"

namespace ddp::kvs {

// What a launcher's service says about the job, before anything is computed from it.

struct JobFacts {
  int rank = 0;
  int world_size = 1;
  /// From the launcher, to check the computed one.
  std::optional<int> local_rank;
  std::optional<int> local_size;  ///< ranks on this node
  /// "(vector,(first node,nodes,ranks per node),...)", the form shared by PMI-2 and PMIX_ANL_MAP.
  std::optional<std::string> process_mapping;
  /// Without that mapping, the number of each rank's node, which need not be dense; empty if the launcher does not say.
  std::vector<int> node_of;
  /// Names of the nodes in node order; empty if the launcher does not say, or the environment is cheaper to ask.
  std::vector<std::string> node_names;
};

/// PMIx_Init to PMIx_Finalize. PMIx is one per process and counts its initializations, so that a program may use PMIx
/// (or MPI) beside libddp. Calls from one thread at a time.
class PmixSession {
 public:
  /// Opens PMIx's library and connects to the server that @p environment names. Throws Error: invalid_argument
  /// (PMIX_RANK missing), unavailable (no library, no server at PMIX_SERVER_URI*), timeout. PMIx_Init has no deadline
  /// of its own and can hang (client 5.0.8 to 5.0.11 with Slurm before 25.11.2, openpmix#3645), so it runs in a thread
  /// that is abandoned at the deadline.
  PmixSession(const base::Environment& environment, Deadline deadline);
  PmixSession(const PmixSession&) = delete;
  PmixSession& operator=(const PmixSession&) = delete;
  ~PmixSession() { close(); }

  const std::string& name_space() const noexcept { return name_space_; }
  const JobFacts& facts() const noexcept { return facts_; }

  /// PMIx_Finalize, abandoned with its thread when it hangs. Idempotent. Slurm kills the whole step when a connected
  /// process ends without it.
  void close() noexcept;

 private:
  std::string name_space_;
  JobFacts facts_;
  bool open_ = false;
};

}  // namespace ddp::kvs
