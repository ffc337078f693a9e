// What each rank of a job reports: its mask, GPUs and variables; brought to rank 0 with the topology of one node of
// each kind.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ddp/binding.hpp>
#include <ddp/cpu_set.hpp>
#include <ddp/deadline.hpp>
#include <ddp/key_value_store.hpp>

#include "base/env_table.hpp"
#include "base/message_fields.hpp"
#include "base/nccl_conf.hpp"
#include "topology/network/interface_candidates.hpp"
#include "topology/network/message_values.hpp"

namespace ddp {

constexpr auto description(const Binding*) {
  return base::describe({"binding"}, base::fields<&Binding::cpus, &Binding::preferred_memory>());
}

}  // namespace ddp

namespace ddp::base {

constexpr auto description(const NcclConf*) {
  return describe({"nccl.conf"}, fields<&NcclConf::path, &NcclConf::digest, &NcclConf::settings>());
}

}  // namespace ddp::base

namespace ddp::topology {

constexpr auto description(const SocketInterface*) {
  return base::describe({"socket interface"},
                        base::fields<&SocketInterface::name, &SocketInterface::address, &SocketInterface::reason>());
}

}  // namespace ddp::topology

namespace ddp::tools {

using Variables = std::map<std::string, std::string, std::less<>>;

struct RankReport {
  std::string failure;  ///< why only the host is known; empty: all is
  int rank = 0;
  int local_rank = 0;
  std::string host;
  CpuSet given;                   ///< the mask with which the program started: what the launcher granted
  Binding binding;                ///< after World::init
  std::vector<int> visible_gpus;  ///< indices of the GPUs that the operating system lets it use, ascending
  /// What *_VISIBLE_DEVICES leaves of them, in its order; nothing when no such variable is set.
  std::optional<std::vector<int>> named_gpus;
  Variables environment;                       ///< only those that have to do with placement; see reported_variables()
  topology::SocketInterface interface;         ///< that World chose
  std::vector<base::NcclConf> nccl_conf = {};  ///< see topology::placement_conf()
  std::uint64_t processor_thousandths = 0;     ///< as in topology::RankResources
  std::string processors_group = {};

  friend bool operator==(const RankReport&, const RankReport&) = default;
};

/// A fence carries every report to every node, so they are kept small. Typical ones have 1 to 2 KiB.
/// A fence carries every report to every node.
inline constexpr std::size_t kLargestReportBytes = std::size_t{64} * 1024;
constexpr auto description(const RankReport*) {
  using T = RankReport;
  return base::describe({.name = "rank's report",
                         .version = 3,
                         .most_bytes = kLargestReportBytes,
                         .shorten = "is a variable such as OMP_PLACES or NCCL_TOPO_FILE extremely long?"},
                        base::fields<&T::failure, &T::rank, &T::local_rank, &T::host, &T::given, &T::binding,
                                     &T::visible_gpus, &T::named_gpus, &T::environment, &T::interface, &T::nccl_conf,
                                     &T::processor_thousandths, &T::processors_group>());
}

/// The variables of the environment that belong to NCCL, UCX, PyTorch's gloo, OpenMP, the GPU runtimes and libddp.
/// Others stay where they are: they may hold secrets.
Variables reported_variables(const base::Environment& environment);

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
