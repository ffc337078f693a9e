#include "topology/inventory/nccl_xml_vendors.hpp"

#include "topology/inventory/nccl_xml_attributes.hpp"

namespace ddp::topology {
namespace {

constexpr int kRcclFormat = 2;  // version= of <system>; NCCL's is 1

bool is_of_amd(const pugi::xml_node& gpu) { return gpu.attribute("gcn") || gpu.child("xgmi"); }

bool names_vendor(const pugi::xml_node& node) { return node.child("gpu") && hex_attribute(node, "vendor").has_value(); }

bool has_nvlink(const pugi::xml_node& node) { return static_cast<bool>(node.child("nvlink")); }

unsigned guess(const pugi::xml_node& system) {
  if (const auto named = system.find_node(&names_vendor)) return hex_attribute(named, "vendor").value();
  if (system.find_node(&is_of_amd)) return pci::kAmd;
  if (system.find_node(&has_nvlink)) return pci::kNvidia;
  return number_in(system.attribute("version").value()).value_or(1) >= kRcclFormat ? pci::kAmd : pci::kNvidia;
}

}  // namespace

NcclXmlVendors::NcclXmlVendors(const pugi::xml_node& system) : others_(guess(system)) {}

unsigned NcclXmlVendors::of(const pugi::xml_node& pci) const {
  if (const auto named = hex_attribute(pci, "vendor")) return *named;
  const pugi::xml_node gpu = pci.child("gpu");
  if (is_of_amd(gpu)) return pci::kAmd;
  return has_nvlink(gpu) ? pci::kNvidia : others_;
}

}  // namespace ddp::topology
