// Gathers the facts of a job whose ranks are connected: brings every rank's to rank 0, and lets the nodes probe each
// other in between.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>
#include <ddp/key_value_store.hpp>
#include <ddp/topology.hpp>

#include "base/env_table.hpp"
#include "base/library_search.hpp"
#include "base/nccl_conf.hpp"
#include "diagnostics/environment/rank_environment.hpp"
#include "doctor/facts.hpp"
#include "doctor/probe.hpp"
#include "topology/inventory/network_facts.hpp"
#include "world/job_connection.hpp"

namespace ddp::tools::doctor {

using ProbeFunction = std::function<std::vector<ProbeResult>(const std::vector<ProbeTarget>&)>;

/// Collective: all ranks of the job call it. Two fences: for everyone's environment and facts, and for what the probes
/// of each node's first rank found.
/// @param nodes where ranks run, if the launcher tells; else by RankFacts::node, else by host name.
/// @return the job on rank 0, nothing elsewhere. Throws what the store throws, and Error(protocol).
std::optional<JobFacts> gather(KeyValueStore& store, const std::optional<world::NodeMap>& nodes, const RankFacts& own,
                               const diagnostics::RankEnvironment& environment, const ProbeFunction& probe,
                               Deadline deadline);

/// Collective. @return the job on rank 0, nothing elsewhere. Throws what the store throws, and on rank 0
/// Error(unavailable) where a rank could not be examined.
/// @param program that the ranks will run, as for surroundings_of_program()
std::optional<JobFacts> examine_job(const world::JobConnection& connection, const base::Environment& environment,
                                    Deadline deadline, const std::string& program = {});

// Gathers what a rank and its node are: from /proc, /sys and /dev below a folder, so that tests lay out machines.

/// The environment's variables that rules look at: of NCCL, PyTorch, the launchers and libddp; without those whose
/// names or values may be secret.
Variables watched_variables(const base::Environment& environment);

/// What a process below @p root ("/") is: limits, processors, cgroups, namespaces, environment.
/// @param files from which its NCCL takes what the environment does not have, the strongest first
RankFacts collect_rank(const std::filesystem::path& root, const base::Environment& environment,
                       const std::vector<base::NcclConf>& files);

/// What the machine below @p root is, but what collect_names and collect_candidates find. @p raw: its interfaces.
NodeFacts collect_node(const std::filesystem::path& root, const std::vector<topology::RawInterface>& raw);

/// GPUs, IOMMU and PCIe switches; a part of collect_node(). @param sys "/sys"
void collect_pci(NodeFacts& node, const std::filesystem::path& sys);

/// RDMA ports, and those of Ethernet with their addresses; a part of collect_node().
void collect_rdma(NodeFacts& node, const std::filesystem::path& sys);

/// What `srun --version` says, in jobs of Slurm: no variable tells it. Nothing by @p deadline: it stays unknown.
void collect_slurm(NodeFacts& node, const base::Environment& environment, Deadline deadline);

/// NVIDIA's driver, NVSwitches, their Fabric Manager and IMEX; a part of collect_node().
void collect_fabric(NodeFacts& node, const std::filesystem::path& root);

/// Failures of GPUs in the kernel's log, where this user may read it; a part of collect_node().
void collect_xids(NodeFacts& node, const std::filesystem::path& root);

/// What `nv-fabricmanager --version` says where there are NVSwitches.
void collect_fabric_manager(NodeFacts& node, Deadline deadline);

/// Where GPUs are; after collect_rdma().
void collect_gpus(NodeFacts& node, const Topology& topology);

/// systemd, gateways, the port of NCCL's RAS. @param user its number
void collect_services(NodeFacts& node, const std::filesystem::path& root, const base::Environment& environment,
                      unsigned user);

/// Plugins, verbs, libfabric and further NCCLs that the rank would open, and files that its variables name; after
/// collect_rank().
void collect_libraries(RankFacts& rank, const std::filesystem::path& root, const base::NcclSurroundings& surroundings);

/// As RankFacts::gpus calls it.
std::string name_of(const Gpu& gpu);

/// Asks the resolver for the host's own name and MASTER_ADDR, and tries MASTER_PORT where that is this node and no
/// launcher serves the store there. After collect_node().
void collect_names(NodeFacts& node, const std::string& host, const base::Environment& environment, Deadline deadline);

/// What libddp would choose the network from. @p several_nodes as known to the launcher.
void collect_candidates(NodeFacts& node, const base::Environment& environment,
                        const std::vector<std::string>& peer_hosts, bool several_nodes);

/// GPUs with their health, and cores of the rank's mask, from hwloc and NVML.
void collect_devices(RankFacts& rank, const Topology& topology, const base::Environment& environment);

}  // namespace ddp::tools::doctor
