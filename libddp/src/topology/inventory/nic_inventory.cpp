#include "topology/inventory/nic_inventory.hpp"

#include <algorithm>
#include <tuple>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace ddp::topology {
namespace {

// PCI ids (pci-ids.ucw.cz) of adapters whose fabric needs no RDMA device of the kernel's to be recognised.
constexpr unsigned kInfinibandClass = 0x0207;
constexpr unsigned kCrayVendor = 0x17db;  // HPE Slingshot 11 ("Cassini")
constexpr unsigned kAmazonVendor = 0x1d0f;
constexpr unsigned kFirstEfa = 0xefa0;
constexpr unsigned kLastEfa = 0xefaf;

bool is_fabric(const NicFunction& function) {
  return !function.rdma_device.empty() || function.class_id == kInfinibandClass || function.vendor_id == kCrayVendor ||
         (function.vendor_id == kAmazonVendor && function.device_id >= kFirstEfa && function.device_id <= kLastEfa);
}

const InterfaceFact* find_interface(const LiveFacts& facts, std::string_view name) {
  const auto found = std::find_if(facts.interfaces.begin(), facts.interfaces.end(),
                                  [&](const InterfaceFact& fact) { return fact.interface.name == name; });
  return found == facts.interfaces.end() ? nullptr : &*found;
}

const RdmaFact* find_rdma(const LiveFacts& facts, std::string_view name) {
  const auto found =
      std::find_if(facts.rdma.begin(), facts.rdma.end(), [&](const RdmaFact& fact) { return fact.name == name; });
  return found == facts.rdma.end() ? nullptr : &*found;
}

/// Devices that hwloc does not show as os-devices, but the kernel knows for this function.
void add_names(NicFunction& function, const LiveFacts& facts) {
  for (const InterfaceFact& fact : facts.interfaces) {
    if (function.interface.empty() && fact.pci == function.pci) function.interface = fact.interface.name;
  }
  for (const RdmaFact& fact : facts.rdma) {
    if (function.rdma_device.empty() && fact.pci == function.pci) function.rdma_device = fact.name;
  }
}

double fastest_active(const std::vector<NicPort>& ports) {
  double rate = 0;
  for (const NicPort& port : ports) {
    if (port.state == "ACTIVE" || port.state.empty()) rate = std::max(rate, port.rate_gbps);
  }
  return rate;
}

/// Why ranks cannot use the device as it is; empty if they can.
std::string what_is_wrong(const Nic& nic, const InterfaceFact* interface) {
  if (nic.interface.empty() && nic.rdma_device.empty()) {
    if (nic.fabric) return {};  // recorded without the kernel's names
    return "it has no network interface (no driver, or given to a container)";
  }
  // What joins IPoIB interfaces leaves their RDMA devices apart.
  const bool infiniband = std::any_of(nic.ports.begin(), nic.ports.end(),
                                      [](const NicPort& port) { return port.link_layer == "InfiniBand"; });
  if (interface != nullptr && interface->interface.kind == InterfaceKind::bond_slave && !infiniband) {
    return fmt::format("it is part of {}", interface->interface.bond);
  }
  if (!nic.ports.empty()) {
    const bool active = std::any_of(nic.ports.begin(), nic.ports.end(),
                                    [](const NicPort& port) { return port.state == "ACTIVE" || port.state.empty(); });
    if (active) return {};
    std::vector<std::string> states;
    for (const NicPort& port : nic.ports) states.push_back(fmt::format("port {} is {}", port.number, port.state));
    return fmt::to_string(fmt::join(states, ", "));
  }
  if (interface == nullptr) return {};
  if (!interface->interface.up) return "it is down";
  if (interface->interface.addresses.empty() && nic.rdma_device.empty()) return "it has no address";
  return {};
}

Nic make_nic(NicFunction function, const LiveFacts& facts) {
  Nic nic;
  nic.fabric = is_fabric(function);
  nic.interface = std::move(function.interface);
  nic.rdma_device = std::move(function.rdma_device);
  nic.pci = function.pci;
  nic.model = std::move(function.model);
  nic.ports = std::move(function.ports);
  nic.locality = std::move(function.locality);
  if (const RdmaFact* rdma = find_rdma(facts, nic.rdma_device)) nic.ports = rdma->ports;
  const InterfaceFact* interface = find_interface(facts, nic.interface);

  nic.rate_gbps = fastest_active(nic.ports);
  if (nic.rate_gbps <= 0 && interface != nullptr) nic.rate_gbps = interface->interface.rate_gbps;
  if (nic.rate_gbps <= 0) nic.rate_gbps = function.pci_gbps;
  nic.virtual_function = std::find(facts.virtual_functions.begin(), facts.virtual_functions.end(), function.pci) !=
                             facts.virtual_functions.end() ||
                         nic.model.find("Virtual Function") != std::string::npos;
  nic.unusable_reason = what_is_wrong(nic, interface);
  nic.usable = nic.unusable_reason.empty();
  return nic;
}

/// Where all of @p places are: what they have in common.
Locality common_place(const std::vector<Locality>& places) {
  Locality common = places.front();
  for (const Locality& place : places) {
    if (place.package != common.package) common.package = -1;
    if (place.numa_node != common.numa_node) common.numa_node = -1;
    common.cpus = common.cpus | place.cpus;
    const auto [end, other] =
        std::mismatch(common.bridges.begin(), common.bridges.end(), place.bridges.begin(), place.bridges.end());
    common.bridges.erase(end, common.bridges.end());
  }
  return common;
}

/// A bond carries its slaves' traffic, and their RDMA device where the adapter joins its ports itself (mlx5_bond_0).
std::optional<Nic> make_bond(const InterfaceFact& bond, std::vector<Nic>& nics) {
  Nic joined;
  joined.interface = bond.interface.name;
  joined.rate_gbps = bond.interface.rate_gbps;
  std::vector<Locality> places;
  double sum_gbps = 0;
  for (Nic& nic : nics) {
    const auto& slaves = bond.interface.slaves;
    if (nic.interface.empty() || std::find(slaves.begin(), slaves.end(), nic.interface) == slaves.end()) continue;
    joined.bonded.push_back(nic.interface);
    places.push_back(nic.locality);
    sum_gbps += nic.rate_gbps;
    if (joined.model.empty()) joined.model = nic.model;
    if (!joined.pci || *nic.pci < *joined.pci) joined.pci = nic.pci;
    if (joined.rdma_device.empty() && !nic.rdma_device.empty() && !nic.usable) {
      joined.rdma_device = nic.rdma_device;
      joined.ports = nic.ports;
      joined.fabric = nic.fabric;
    }
  }
  if (places.empty()) return std::nullopt;
  if (joined.rate_gbps <= 0) joined.rate_gbps = sum_gbps;
  joined.locality = common_place(places);
  joined.unusable_reason = what_is_wrong(joined, &bond);
  joined.usable = joined.unusable_reason.empty();
  return joined;
}

}  // namespace

std::vector<Nic> make_nics(std::vector<NicFunction> functions, const LiveFacts& facts) {
  std::vector<Nic> nics;
  for (NicFunction& function : functions) {
    add_names(function, facts);
    nics.push_back(make_nic(std::move(function), facts));
  }
  std::vector<Nic> bonds;
  for (const InterfaceFact& fact : facts.interfaces) {
    if (fact.interface.kind != InterfaceKind::bond) continue;
    if (auto bond = make_bond(fact, nics)) bonds.push_back(std::move(*bond));
  }
  nics.insert(nics.end(), bonds.begin(), bonds.end());

  // Virtual functions are there for virtual machines and containers; inside of one they are all there is.
  const bool physical = std::any_of(nics.begin(), nics.end(),
                                    [](const Nic& nic) { return nic.usable && !nic.virtual_function && nic.fabric; });
  for (Nic& nic : nics) {
    if (!nic.virtual_function || !nic.usable || !physical) continue;
    nic.usable = false;
    nic.unusable_reason = "it is a virtual function, and the adapter itself can be used";
  }
  std::sort(nics.begin(), nics.end(), [](const Nic& a, const Nic& b) {
    return std::tuple(a.pci, a.interface, a.rdma_device) < std::tuple(b.pci, b.interface, b.rdma_device);
  });
  for (std::size_t i = 0; i < nics.size(); ++i) nics[i].index = static_cast<int>(i);
  return nics;
}

std::vector<NetworkInterface> interfaces_of(const std::vector<Nic>& nics) {
  std::vector<NetworkInterface> interfaces;
  for (const Nic& nic : nics) {
    if (nic.interface.empty()) continue;
    interfaces.push_back(
        {.name = nic.interface, .kind = InterfaceKind::hardware, .up = true, .rate_gbps = nic.rate_gbps});
  }
  return interfaces;
}

}  // namespace ddp::topology
