// Reads NCCL's own topology format, in which cloud vendors describe their virtual machines (NCCL_TOPO_FILE) and which
// NCCL and RCCL write with NCCL_TOPO_DUMP_FILE.
#pragma once

#include <string_view>

#include <ddp/topology.hpp>

namespace ddp::topology {

/// Whether the root element is <system>.
bool looks_like_nccl_xml(std::string_view text);

/// @param name what messages call the text.
/// Throws Error(invalid_argument) with the line: not well-formed, truncated, several hosts in one file, no processors,
/// or numbers that make no sense. Unknown elements and attributes are skipped: each version of NCCL adds some.
Topology::Parts parts_from_nccl_xml(std::string_view xml, std::string_view name);

}  // namespace ddp::topology
