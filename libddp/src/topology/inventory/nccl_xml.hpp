// Reads NCCL's own topology format, in which cloud vendors describe their virtual machines (NCCL_TOPO_FILE) and which
// NCCL and RCCL write with NCCL_TOPO_DUMP_FILE.
#pragma once

#include <charconv>
#include <optional>
#include <string_view>

#include <pugixml.hpp>

#include <ddp/topology.hpp>

#include "topology/inventory/gpu_facts.hpp"

namespace ddp::topology {

/// Whether the root element is <system>.
bool looks_like_nccl_xml(std::string_view text);

/// @param name what messages call the text.
/// Throws Error(invalid_argument) with the line: not well-formed, truncated, several hosts in one file, no processors,
/// or numbers that make no sense. Unknown elements and attributes are skipped: each version of NCCL adds some.
Topology::Parts parts_from_nccl_xml(std::string_view xml, std::string_view name);

// Numbers in the attributes of NCCL's topology format, which has no schema.

/// A whole number in the notation of @p base; nothing if the text is anything else.
inline std::optional<int> number_in(std::string_view text, int base = 10) {
  int value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (text.empty() || status != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// "0x030200", "0x10de"; nothing for other text.
inline std::optional<unsigned> hex_attribute(const pugi::xml_node& node, const char* name) {
  std::string_view text = node.attribute(name).value();
  if (!text.starts_with("0x")) return std::nullopt;
  const auto value = number_in(text.substr(2), 16);
  return value && *value >= 0 ? std::optional<unsigned>(*value) : std::nullopt;
}

// Whose GPUs a file in NCCL's topology format has: RCCL before 2.13 wrote no vendor, and files written by hand for NCCL
// have none.

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
