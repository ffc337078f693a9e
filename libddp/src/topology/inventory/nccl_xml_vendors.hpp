// Whose GPUs a file in NCCL's topology format has: RCCL before 2.13 wrote no vendor, and files written by hand for NCCL
// have none.
#pragma once

#include <pugixml.hpp>

#include "topology/inventory/pci_codes.hpp"

namespace ddp::topology {

class NcclXmlVendors {
 public:
  NcclXmlVendors() = default;
  /// Reads what the file says of all GPUs. @p system its root.
  explicit NcclXmlVendors(const pugi::xml_node& system);

  /// PCI's number for the vendor of a GPU: as it says itself, else as its other attributes and links say, else as those
  /// of the other GPUs do. @p pci its element.
  unsigned of(const pugi::xml_node& pci) const;

 private:
  unsigned others_ = pci::kNvidia;  ///< of GPUs that say nothing themselves
};

}  // namespace ddp::topology
