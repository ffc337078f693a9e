// What the kernel reports on network interfaces, RDMA devices and virtual functions. Reads below a given /sys: tests
// lay out machines as folders.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "topology/inventory/live_facts.hpp"

namespace ddp::topology {

/// An interface as getifaddrs(3) lists it.
struct RawInterface {
  std::string name;
  unsigned flags = 0;  ///< IFF_*
  std::vector<InterfaceAddress> addresses{};
};

/// All interfaces of this network namespace in the kernel's order, also those without any address; addresses in the
/// kernel's order, those of labels ("eth0:1") with their interface. Throws Error(system).
std::vector<RawInterface> list_raw_interfaces();

/// What @p sys ("/sys") says about the interfaces @p raw, in the same order. Link-local addresses (IPv6 fe80::/10, IPv4
/// 169.254/16) are left out: they reach no other host by routing, and IPv6 ones need a scope.
/// Interfaces that @p sys does not have (it may show another network namespace) are told by flags and name.
std::vector<InterfaceFact> read_interfaces(const std::filesystem::path& sys, const std::vector<RawInterface>& raw);

/// This network namespace's interfaces, as far as find_candidates() needs them. Of those that are down or have no
/// address, only flags and name are told; rates and adapters only where there are several to choose from. Every rank
/// calls this before its first fence, and /sys takes 0.1 ms an interface.
std::vector<InterfaceFact> read_usable_interfaces();

/// sys/class/infiniband, by name.
std::vector<RdmaFact> read_rdma_devices(const std::filesystem::path& sys);

/// PCI functions of network class that are SR-IOV virtual functions of another one, ascending.
std::vector<PciAddress> read_virtual_functions(const std::filesystem::path& sys);

}  // namespace ddp::topology
