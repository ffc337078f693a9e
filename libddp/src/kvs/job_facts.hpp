// What a launcher's service says about the job, before anything is computed from it.
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace ddp::kvs {

struct JobFacts {
  int rank = 0;
  int world_size = 1;
  /// From the launcher, to check the computed one.
  std::optional<int> local_rank;
  /// "(vector,(first node,nodes,ranks per node),...)", the form shared by PMI-2 and PMIX_ANL_MAP.
  std::optional<std::string> process_mapping;
  /// Names of the nodes in node order; empty if the launcher does not say, or the environment is cheaper to ask.
  std::vector<std::string> node_names;
};

}  // namespace ddp::kvs
