// NICs for ranks, from PCI network functions and the kernel's facts about them.
#pragma once

#include <string>
#include <vector>

#include <ddp/devices.hpp>

#include "topology/inventory/live_facts.hpp"

namespace ddp::topology {

/// A PCI function of a network adapter as hwloc shows it.
struct NicFunction {
  PciAddress pci;
  unsigned class_id = 0;  ///< 0x0200 Ethernet, 0x0207 InfiniBand, 0x0280 other
  unsigned vendor_id = 0;
  unsigned device_id = 0;
  std::string model;
  double pci_gbps = 0;  ///< of the PCI link in Gbit/s; 0 if unknown
  std::string interface = {};
  std::string rdma_device{};
  std::vector<NicPort> ports{};  ///< as hwloc knows them: state only
  Locality locality;
};

/// One Nic for each function and each bond, ordered by PCI address, then name, with index set. Without facts (a machine
/// that another tool has recorded) interfaces and ports of unknown state count as usable.
std::vector<Nic> make_nics(std::vector<NicFunction> functions, const LiveFacts& facts);

/// The kernel interfaces that @p nics mention, for machines whose interfaces are otherwise unknown. They count as up.
std::vector<NetworkInterface> interfaces_of(const std::vector<Nic>& nics);

}  // namespace ddp::topology
