// The devices of a node that training uses, GPUs and NICs, and how far apart they are. Values: they stay valid after
// the Topology that they came from is gone.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ddp/cpu_set.hpp>

namespace ddp {

/// Address of a PCI function: "0000:3b:00.0".
struct PciAddress {
  std::uint32_t domain = 0;   ///< PCI segment
  std::uint8_t bus = 0;       ///< in the domain
  std::uint8_t device = 0;    ///< on the bus, below 32
  std::uint8_t function = 0;  ///< of the device, below 8

  /// Parses "0000:3b:00.0", "3b:00.0" or NVML's "00000000:3B:00.0"; nothing for other text.
  static std::optional<PciAddress> parse(std::string_view text);
  std::string to_string() const;                                            ///< "0000:3b:00.0"
  friend auto operator<=>(const PciAddress&, const PciAddress&) = default;  ///< by domain, bus, device, function
};

/// Where a device is attached.
struct Locality {
  int package = -1;          ///< index in Topology::packages(); -1: unknown, or the device is near several
  int numa_node = -1;        ///< index in Topology::numa_nodes(); -1: unknown, or the device is near several
  CpuSet cpus{};             ///< processors near the device; all of the machine's if unknown
  std::vector<int> bridges;  ///< numbers of the bridges above a PCI device, host bridge first; empty: not on PCI
};

/// GPU vendors.
enum class Vendor { nvidia, amd, intel, other };
std::string_view to_string(Vendor vendor) noexcept;  ///< "NVIDIA", "AMD", "Intel", "other"

/// A Multi-Instance GPU (MIG) device: a partition of an NVIDIA GPU.
struct MigDevice {
  std::string uuid;  ///< "MIG-..."
  std::string name;  ///< "1g.10gb"; empty if unknown
};

/// A GPU.
struct Gpu {
  int index = 0;   ///< position in Topology::gpus(), which is ordered by PCI address, as CUDA_DEVICE_ORDER=PCI_BUS_ID
  PciAddress pci;  ///< its PCI function
  Vendor vendor = Vendor::other;      ///< by the PCI vendor id
  std::string model;                  ///< "NVIDIA H200"; the PCI id "10de:2335" if no name is known
  std::string uuid;                   ///< "GPU-..." as the vendor's tools print it; empty if unknown
  std::optional<int> vendor_index;    ///< NVML's or ROCm SMI's number, if known
  std::vector<std::string> os_names;  ///< hwloc's os-devices: "nvml0", "cuda0", "rsmi3"; ascending
  std::vector<MigDevice> mig;         ///< empty unless MIG is on
  bool visible = true;                ///< this process may use it
  std::string hidden_reason;          ///< why it is not visible: "its device file may not be opened (EPERM)"
  Locality locality;                  ///< where it is attached
};

/// A port of an RDMA device.
struct NicPort {
  int number = 1;            ///< the port's number on the device, from 1
  std::string state;         ///< "ACTIVE", "DOWN", ...; empty if unknown
  std::string link_layer{};  ///< "InfiniBand", "Ethernet"; empty if unknown
  double rate_gbps = 0;      ///< Gbit/s; 0 if unknown
};

/// An address of a network interface with its subnet.
struct InterfaceAddress {
  std::string address;    ///< numeric, without scope
  int prefix_length = 0;  ///< bits of the subnet
  bool ipv6 = false;      ///< else IPv4
  friend bool operator==(const InterfaceAddress&, const InterfaceAddress&) = default;
};

/// What kind of interface the kernel says it is.
enum class InterfaceKind {
  hardware,  ///< a device on a bus
  loopback,
  bond,        ///< several interfaces joined into one
  bond_slave,  ///< one of those; carries no traffic of its own
  vlan,
  bridge,     ///< with a hardware interface among its ports: reaches what that interface reaches
  host_only,  ///< reaches only this host and its containers: docker, virbr, veth, cni, dummy, bridges without hardware
  tunnel,     ///< tun, tap, wireguard, ip6tnl, ...
  other,      ///< virtual, with no known meaning; may reach other hosts
};
std::string_view to_string(InterfaceKind kind) noexcept;  ///< the enumerator's name

/// A network interface of the kernel ("netdev").
struct NetworkInterface {
  std::string name;                           ///< "ib0"
  InterfaceKind kind = InterfaceKind::other;  ///< what the kernel says it is
  bool up = false;                            ///< IFF_UP and IFF_RUNNING: configured, and its cable is connected
  std::vector<InterfaceAddress> addresses{};  ///< without IPv6 link-local; IPv4 first, in the kernel's order
  double rate_gbps = 0;                       ///< /sys/class/net/NAME/speed in Gbit/s; 0 if unknown
  std::string bond{};                         ///< the bond that this is a slave of; empty: none
  std::vector<std::string> slaves{};          ///< of a bond or bridge, or below a VLAN; ascending
};

/// A network adapter port that ranks can be paired with: a PCI function with its kernel interface, its RDMA device, or
/// both. A bond is one Nic, located where its slaves are.
struct Nic {
  int index = 0;                    ///< position in Topology::nics(): by PCI address, then name
  std::string interface;            ///< "ib0"; empty for a device without a kernel interface
  std::string rdma_device;          ///< "mlx5_0"; empty if it has none
  std::optional<PciAddress> pci;    ///< nothing if it is not on PCI, such as a bond
  std::string model;                ///< "MT2910 Family [ConnectX-7]"; the PCI id if no name is known
  std::vector<NicPort> ports;       ///< of the RDMA device; empty if it has none
  std::vector<std::string> bonded;  ///< names of the bonded interfaces; empty unless it is a bond
  double rate_gbps = 0;             ///< of the fastest active port, else of the PCI link; 0 if unknown
  bool fabric = false;              ///< built for clusters: an RDMA device, Slingshot, EFA or Omni-Path
  bool usable = true;               ///< up, and neither a virtual function of a usable device nor part of a bond
  std::string unusable_reason;      ///< why; empty if usable
  bool virtual_function = false;    ///< SR-IOV
  Locality locality;                ///< where it is attached

  /// "ib0 (mlx5_0)", "mlx5_0" or "eth0"; the PCI address of a device that has neither.
  std::string name() const;
};

/// Kinds of connection, nearest first. The words are those of NCCL and of `nvidia-smi topo -m`.
enum class Path {
  self,     ///< X: the device itself
  nvlink,   ///< NVL: NVLink, also through NVSwitch; XGMI between AMD GPUs
  pix,      ///< PIX: at most one PCIe switch
  pxb,      ///< PXB: several PCIe switches, but no host bridge
  phb,      ///< PHB: one PCIe host bridge (the CPU)
  node,     ///< NODE: two host bridges of one NUMA node
  sys,      ///< SYS: the connection between NUMA nodes
  unknown,  ///< ?: the location of at least one of them is unknown
};
std::string_view to_string(Path path) noexcept;  ///< "X", "NVL", "PIX", "PXB", "PHB", "NODE", "SYS", "?"

/// How far two devices are apart; smaller is nearer.
struct Distance {
  Path path = Path::unknown;   ///< kind of connection
  bool other_package = false;  ///< for SYS: they are on different packages
  int bridges = 0;             ///< PCI bridges between them, below their common ancestor: breaks ties
  friend auto operator<=>(const Distance&, const Distance&) = default;  ///< nearer is smaller
};

/// Distance by PCI tree and NUMA nodes alone (only a Topology knows NVLink). Pure function of its arguments.
Distance distance(const Locality& a, const Locality& b);

}  // namespace ddp
