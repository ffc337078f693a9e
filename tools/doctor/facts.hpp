// What the doctor knows of a job: plain values, gathered once on every node and rank, which the rules judge.
#pragma once

#include <algorithm>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ddp/bytes.hpp>
#include <ddp/cpu_set.hpp>
#include <ddp/devices.hpp>
#include <ddp/diagnostics.hpp>

#include "topology/inventory/nvml.hpp"
#include "topology/network/interface_candidates.hpp"

namespace ddp::tools::doctor {

struct Version {
  int major = 0;
  int minor = 0;
  int patch = 0;
  friend auto operator<=>(const Version&, const Version&) = default;

  /// "5.0.8", "5.0.8rc1", "2.28.9+cuda13.0"; missing numbers are 0.
  static Version of(const std::string& text) {
    Version version;
    std::sscanf(text.c_str(), "%d.%d.%d", &version.major, &version.minor, &version.patch);  // NOLINT(cert-err34-c)
    return version;
  }
};

/// From the first version on, below the second.
struct VersionRange {
  Version from;
  Version below;
  bool contains(const Version& version) const { return version >= from && version < below; }
};

using Variables = std::map<std::string, std::string, std::less<>>;

/// A network interface as getifaddrs(3) and /sys describe it.
struct InterfaceFacts {
  std::string name;
  InterfaceKind kind = InterfaceKind::other;
  bool running = false;                     ///< IFF_UP and IFF_RUNNING
  std::int64_t mtu = 0;                     ///< bytes; 0 if unknown
  std::int64_t rate_mbps = 0;               ///< Mbit/s; 0 if unknown
  std::int64_t arp_ignore = 0;              ///< the stricter of the interface's and of all (net.ipv4.conf)
  std::int64_t arp_announce = 0;            ///< the same
  std::vector<InterfaceAddress> addresses;  ///< also link-local ones; in the kernel's order
  friend bool operator==(const InterfaceFacts&, const InterfaceFacts&) = default;
};

/// A used row of a port's address table.
struct GidFacts {
  int index = 0;
  std::string type;  ///< "RoCE v2", "IB/RoCE v1"
  std::string gid;   ///< "0000:0000:0000:0000:0000:ffff:0a01:0002": 10.1.0.2
  friend bool operator==(const GidFacts&, const GidFacts&) = default;
};

struct RdmaPortFacts {
  std::string device;  ///< "mlx5_0"
  int port = 1;
  std::string state;                     ///< "ACTIVE"
  std::string link_layer;                ///< "InfiniBand", "Ethernet"
  bool gids_known = false;               ///< for Ethernet, if the kernel shows the table
  std::vector<GidFacts> gids = {};       ///< by index
  bool gids_cut = false;                 ///< the table has more rows
  std::string subnet = {};               ///< of InfiniBand: "fe80:0000:0000:0000", the first half of its address
  std::vector<std::int64_t> pkeys = {};  ///< of InfiniBand: the first rows of its partition table; 0: an empty row
  std::int64_t rate_mbps = 0;            ///< Mbit/s; 0 if unknown
  std::string pci = {};                  ///< "0000:3b:00.0"; empty if unknown
  std::string board = {};                ///< kind of adapter: "MT_0000000838"
  std::string firmware = {};             ///< "28.39.1002"
  friend bool operator==(const RdmaPortFacts&, const RdmaPortFacts&) = default;
};

/// A GPU of a node, whoever may use it.
struct GpuFacts {
  std::string name;           ///< as RankFacts::gpus has it
  int numa_node = -1;         ///< the kernel's number of its NUMA node; -1 if unknown
  CpuSet cpus{};              ///< processors near to it; empty if unknown
  std::vector<Path> paths{};  ///< to NodeFacts::rdma, in that order
  friend bool operator==(const GpuFacts&, const GpuFacts&) = default;
};

/// A plugin that NCCL would open.
struct PluginFacts {
  std::string variable;  ///< "NCCL_NET_PLUGIN"
  std::string path;
  std::string digest;       ///< equal for equal files
  std::string network;      ///< the network that it is made for: "libfabric", "InfiniBand"; empty if unknown
  bool by_default = false;  ///< the variable is not set: NCCL opens it because it exists
  friend bool operator==(const PluginFacts&, const PluginFacts&) = default;
};

/// Whether NVIDIA's Fabric Manager runs, which NVSwitches need.
enum class FabricManager : std::uint8_t { unknown, running, absent };

/// Where a node answers probes: at each address over which the job may run.
struct ProbeListener {
  std::string interface;
  std::string address;  ///< numeric
  std::int64_t mtu = 0;
  std::int64_t rate_mbps = 0;  ///< of the interface; 0 if unknown
  std::uint16_t tcp_port = 0;
  std::uint16_t udp_port = 0;
  friend bool operator==(const ProbeListener&, const ProbeListener&) = default;
};

/// A failure that NVIDIA's driver has written to the kernel's log.
struct XidFacts {
  std::string gpu;  ///< "0000:3b:00"
  int number = 0;
  std::int64_t times = 1;
  std::int64_t age_s = 0;  ///< of the last one
  friend bool operator==(const XidFacts&, const XidFacts&) = default;
};

/// The resolver's answer for a name.
struct NameFacts {
  std::vector<std::string> addresses{};  ///< numeric
  bool unanswered = false;               ///< it was too slow, so the addresses are unknown
  friend bool operator==(const NameFacts&, const NameFacts&) = default;
};

/// Facts of a node, gathered by its first rank.
struct NodeFacts {
  std::string boot_id;
  std::string kernel;              ///< "6.1.0-18-amd64"
  NameFacts own_name;              ///< the host's
  NameFacts master;                ///< MASTER_ADDR, as this node resolves it
  bool master_port_taken = false;  ///< MASTER_ADDR is this node, and a process already listens at MASTER_PORT
  std::int64_t shm_bytes = -1;     ///< size of /dev/shm; -1: there is none
  std::int64_t shm_free_bytes = -1;
  std::vector<InterfaceFacts> interfaces;  ///< in the kernel's order
  std::vector<RdmaPortFacts> rdma;
  std::vector<std::string> candidates;                      ///< interfaces that libddp considers, best first
  std::vector<topology::CandidateAddress> candidate_facts;  ///< of each
  std::string candidates_failure;                           ///< why there are none
  std::int64_t port_low = 0;                                ///< net.ipv4.ip_local_port_range; 0 if unknown
  std::int64_t port_high = 0;
  std::string iommu;  ///< type of the IOMMU domain of GPUs and RDMA devices that could exchange data over PCIe:
                      ///< "DMA-FQ", "identity"; empty: none
  std::vector<std::string> acs_ports;  ///< of PCIe switches with several such devices, which send their packets upwards
  std::int64_t nvidia_gpus = 0;        ///< GPUs that NVIDIA's driver sees
  bool peer_memory = false;            ///< nvidia_peermem or nv_peer_mem is loaded
  bool dma_buf = false;                ///< NVIDIA's open kernel module on Linux 5.12 or newer: memory passes as dma-buf
  std::string nvidia_driver;           ///< version: "550.54.15"
  std::int64_t nvswitches = 0;         ///< NVSwitches that NVIDIA's driver sees
  FabricManager fabric_manager = FabricManager::unknown;
  std::string fabric_manager_version;  ///< "550.54.15"; empty if unknown
  std::string imex_nodes;              ///< digest of the node list of the IMEX domain; empty: there is none
  std::vector<GpuFacts> gpus;          ///< by PCI address
  std::vector<XidFacts> xids;          ///< since the machine's start; empty if the log is unreadable
  std::vector<std::string> gateways;   ///< interfaces with a route over a gateway, in the main table
  std::string libfabric_device;       ///< a device that only libfabric drives: "rdmap16s27 (EFA)"; empty: there is none
  bool numa = true;                   ///< the kernel has NUMA nodes
  bool removes_ipc = false;           ///< systemd removes this user's files in /dev/shm when a session ends
  std::int64_t foreign_ras_port = 0;  ///< another user's process listens where NCCL's RAS would; 0: none
  std::string slurm_version;          ///< of the srun here: "22.05.8"; empty: unknown, or no job of Slurm
  std::vector<ProbeListener> listeners;
  Bytes token;  ///< carried by this job's probes
  friend bool operator==(const NodeFacts&, const NodeFacts&) = default;
};

struct RankFacts {
  std::string failure;  ///< why only the numbers and the host are known; empty if all is
  int rank = 0;
  int local_rank = 0;
  int node = -1;  ///< node number if the launcher provides one; JobFacts has it for all ranks
  std::string host;
  std::string version;              ///< of ddp-info
  Variables environment;            ///< of the families that matter; secrets left out
  std::string pmix_version;         ///< of the PMIx server; empty where there is none
  std::int64_t memlock_bytes = -1;  ///< soft limits; -1: unlimited, also by the privilege to exceed it
  std::int64_t open_files = -1;
  bool stack_unlimited = false;         ///< ulimit -s unlimited
  CpuSet cpus;                          ///< processors that it may use
  CpuSet memory_nodes;                  ///< NUMA nodes whose memory it may use; empty if unknown
  std::int64_t cores = 0;               ///< physical cores among them; 0 if unknown
  double cpu_quota = 0;                 ///< processors' worth of time that cgroups allow; 0: no limit
  std::int64_t pids_limit = -1;         ///< tasks that cgroups allow; -1: no limit
  Variables namespaces;                 ///< "net" -> "net:[4026531840]"
  std::uint64_t shm_device = 0;         ///< st_dev of /dev/shm
  std::vector<std::string> gpus;        ///< UUIDs, else PCI addresses, of the GPUs that it may use, in its order
  std::vector<std::string> gpu_models;  ///< of these
  std::int64_t gpus_of_node = 0;        ///< that the machine has
  std::int64_t gpus_allowed = 0;  ///< of these, those that the operating system allows, whatever *_VISIBLE_DEVICES says
  bool nvidia_caps = true;        ///< /dev/nvidia-caps exists
  bool imex_channel = false;      ///< a device in /dev/nvidia-caps-imex-channels may be opened
  std::string verbs_problem;      ///< why it cannot use the node's RDMA devices; empty: it can
  std::vector<PluginFacts> plugins;             ///< of NCCL
  std::vector<std::string> nccl_copies;         ///< further NCCLs on its search path: "2.27.5 (/opt/lib/libnccl.so.2)"
  bool libfabric = false;                       ///< the loader finds libfabric
  Variables missing_files;                      ///< variables that name a missing file or folder, with that name
  std::vector<topology::GpuHealth> gpu_health;  ///< as far as NVML lets it see
  std::optional<NodeFacts> of_node;             ///< of the first rank of each node

  /// From the environment; empty if it is not set.
  std::string variable(std::string_view name) const {
    const auto found = environment.find(name);
    return found == environment.end() ? std::string{} : found->second;
  }
  friend bool operator==(const RankFacts&, const RankFacts&) = default;
};

enum class ProbeEnd : std::uint8_t {
  reached,
  silent,       ///< no answer in time
  refused,      ///< by that host, or another that has its address
  unreachable,  ///< the kernel has no route
};

enum class PacketEnd : std::uint8_t {
  untested,  ///< not even a small packet was answered, or a router reports what is too large, as it should
  passed,
  lost,  ///< a packet of the size that both interfaces allow was not answered, but small ones were
};

struct ProbeResult {
  int to_node = 0;
  std::string interface;  ///< the target's
  std::string address;
  ProbeEnd end = ProbeEnd::silent;
  PacketEnd packet = PacketEnd::untested;
  std::int64_t packet_bytes = 0;  ///< IP packet; 0: none was sent
  std::int64_t rate_mbps = 0;     ///< of the slower of both interfaces; 0 if unknown
  std::int64_t path_mbps = 0;     ///< what trains of packets came through with (probe.hpp); 0: none did
  friend bool operator==(const ProbeResult&, const ProbeResult&) = default;
};

/// What the first rank of a node reports after the facts have been exchanged.
struct ProbeReport {
  std::int64_t clock_ms = 0;  ///< CLOCK_REALTIME when the fence ended, ms since 1970
  std::vector<ProbeResult> results;
  friend bool operator==(const ProbeReport&, const ProbeReport&) = default;
};

struct NodeRecord {
  std::string host;
  std::vector<int> ranks;  ///< ascending
  NodeFacts facts{};
  ProbeReport probes{};
};

struct JobFacts {
  std::vector<NodeRecord> nodes;                 ///< by node number
  std::vector<RankFacts> ranks;                  ///< by rank; RankFacts::node is right
  std::vector<EnvironmentFinding> environment;   ///< findings on the ranks' variables
  std::vector<EnvironmentReport::Library> nccl;  ///< that ranks would load, with these ranks
  bool several_nodes() const { return nodes.size() > 1; }
  /// Version of the library that the rank would load; empty if unknown.
  std::string nccl_version(int rank) const {
    for (const EnvironmentReport::Library& library : nccl) {
      if (std::binary_search(library.ranks.begin(), library.ranks.end(), rank)) return library.version;
    }
    return {};
  }
  const NodeRecord& node_of(const RankFacts& rank) const { return nodes[static_cast<std::size_t>(rank.node)]; }
};

/// A fence carries every rank's facts, so they are kept small. Typical: 1 to 4 KiB.
inline constexpr std::size_t kLargestFactsBytes = std::size_t{64} * 1024;

}  // namespace ddp::tools::doctor
