// What `ddp-info topo` reports, as plain values; printers only format it.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ddp/binding.hpp>
#include <ddp/placement.hpp>
#include <ddp/topology.hpp>

#include "base/cgroup_limits.hpp"
#include "base/env_table.hpp"
#include "base/nccl_conf.hpp"
#include "topo/job_gather.hpp"
#include "topology/placement/option_words.hpp"

namespace ddp::tools {

/// What a rank's mask is, compared with the cores that it should use.
enum class BindingState {
  as_placed,  ///< equal
  not_bound,  ///< all that the job may use on the node
  narrower,   ///< fewer, or farther from its GPU, as the launcher gave no others
  wider,      ///< all of them and others
  elsewhere,  ///< other ones
};
std::string_view to_string(BindingState state) noexcept;  ///< the enumerator's name

/// What a rank of a running job has got.
struct ActualBinding {
  CpuSet given;     ///< before World::init
  Binding binding;  ///< now
  BindingState state = BindingState::as_placed;
  std::string sentence{};  ///< "narrower mask from the launcher: 0-1"
  friend bool operator==(const ActualBinding&, const ActualBinding&) = default;
};

/// One environment variable of one rank.
struct SettingRow {
  std::string name;
  std::string value;   ///< recommended; the user's own where it is kept
  std::string reason;  ///< one sentence
  bool by_user = false;
  std::string conflict;                 ///< what is wrong with the set value; empty: nothing
  std::optional<std::string> actual{};  ///< in a job: what the rank has; nothing where it is not set
};

/// One of the ranks that a row stands for: one per folded node.
struct RankIdentity {
  int rank = 0;
  std::string host;                          ///< empty for the machine of a file
  topology::SocketInterface interface = {};  ///< in a job
};

struct RankRow {
  std::vector<RankIdentity> ranks;  ///< ascending; never empty
  int local_rank = 0;
  Placement placement;
  std::vector<SettingRow> settings{};     ///< by name
  std::optional<ActualBinding> actual{};  ///< in a job
};

/// One node, or several that look alike and whose ranks are placed, bound and set up alike.
struct NodeKind {
  Topology topology;
  std::vector<std::string> hosts{};  ///< empty for the machine of a file
  std::vector<RankRow> rows{};       ///< by local rank
  CpuSet allowed{};                  ///< processors that ranks may use

  std::vector<int> ranks() const;        ///< of the job, ascending
  std::vector<int> unused_gpus() const;  ///< visible, but of no rank
};

struct JobDescription {
  std::string launcher;  ///< "pmix"
  std::string reason;    ///< why that
  int world_size = 1;
};

struct Report {
  std::optional<JobDescription> job{};  ///< nothing: about a machine
  BindPolicy policy = BindPolicy::numa;
  topology::GpuVisibility gpus = topology::GpuVisibility::all;
  std::vector<NodeKind> kinds{};  ///< by their first rank
};

/// A question about one machine.
struct MachineQuestion {
  int num_ranks = 1;
  BindPolicy policy = BindPolicy::numa;
  topology::GpuVisibility gpus = topology::GpuVisibility::all;
  base::Environment environment{{}};           ///< what ranks would inherit
  CpuSet allowed;                              ///< empty: those the topology allows
  std::string host;                            ///< empty: none, a file's machine
  base::CgroupLimits limits = {};              ///< of this process
  std::vector<base::NcclConf> nccl_conf = {};  ///< files that NCCL reads, the strongest first
};

/// One rank for each GPU that may be used, else one for each NUMA node that has allowed processors; at least 1.
int default_num_ranks(const Topology& topology, const base::Environment& environment, const CpuSet& allowed);

/// What the ranks of the machine would get. Throws what place() throws.
Report describe_machine(const Topology& topology, const MachineQuestion& question);

/// A node of a job, with the reports of its ranks by local rank.
struct NodeReports {
  Topology topology;
  std::vector<RankReport> ranks{};
};

/// What the ranks of a job have got, beside what they should have. Equal nodes are folded.
Report describe_job(const std::vector<NodeReports>& nodes, JobDescription job, BindPolicy policy,
                    topology::GpuVisibility gpus);

/// The kind and the row of a rank. Throws Error(invalid_argument) if there is no such rank.
std::pair<const NodeKind*, const RankRow*> find_rank(const Report& report, int rank);

}  // namespace ddp::tools
