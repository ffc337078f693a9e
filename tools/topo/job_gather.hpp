// Brings the reports of all ranks of a job to rank 0, and the topology of one node of each kind.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>
#include <ddp/key_value_store.hpp>

#include "topo/rank_report.hpp"

namespace ddp::tools {

/// Which ranks there are, and where.
struct JobLayout {
  int rank = 0;                                ///< this one
  std::vector<std::vector<int>> node_ranks{};  ///< ranks of each node, ascending, by node number
};

struct OwnFacts {
  RankReport report;
  std::string machine;  ///< equal on nodes whose XML need not be sent twice; only the first rank of a node needs it
  std::string xml;      ///< the same
};

struct GatheredNode {
  std::string machine;              ///< key of GatheredJob::xml; empty if the node's first rank has failed
  std::vector<RankReport> ranks{};  ///< by local rank
};

struct GatheredJob {
  std::map<std::string, std::string, std::less<>> xml;  ///< by machine
  std::vector<GatheredNode> nodes;                      ///< by node number
};

inline constexpr std::size_t kLargestXmlBytes = std::size_t{16} * 1024 * 1024;

/// Collective: all ranks of the job call it. Two fences: in the first one every rank gives its report and the first
/// rank of each node names its machine; in the second one the first node of each kind of machine gives its XML: one in
/// a homogeneous job, whatever the number of nodes.
/// @return the job on rank 0, nothing elsewhere. Throws what the store throws, and Error(protocol).
std::optional<GatheredJob> gather_job(KeyValueStore& store, const JobLayout& layout, const OwnFacts& own,
                                      Deadline deadline);

}  // namespace ddp::tools
