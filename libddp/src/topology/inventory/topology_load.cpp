// The ways to get a Topology: from the running machine, from XML, from hwloc's synthetic descriptions.
#include <hwloc.h>
#include <hwloc/export.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include <fmt/format.h>

#include <ddp/error.hpp>
#include <ddp/topology.hpp>

#include "base/errors.hpp"
#include "topology/inventory/hwloc_reader.hpp"
#include "topology/inventory/live_facts.hpp"
#include "topology/inventory/nccl_xml.hpp"

namespace ddp {
namespace {

// The largest machines give about 2 MB.
constexpr std::size_t kLargestXmlBytes = 64U << 20U;
// How much of a file is looked at to tell what it is.
constexpr std::size_t kHeadBytes = 4096;

[[noreturn]] void reject(std::string_view name, std::string cause, std::string hint) {
  throw Error{{.code = ErrorCode::invalid_argument,
               .attempted = fmt::format("reading the topology in {}", name),
               .cause = std::move(cause),
               .hint = std::move(hint)}};
}

void require(bool done, std::string_view attempted) {
  if (!done) throw base::system_error(fmt::format("{} (hwloc)", attempted), errno);
}

/// hwloc loads its plugins for the first topology and unloads them after the last one. This one is never destroyed:
/// they are loaded once.
void keep_plugins_loaded() {
  static const hwloc_topology_t kept = [] {
    hwloc_topology_t first = nullptr;
    return hwloc_topology_init(&first) == 0 ? first : nullptr;
  }();
  require(kept != nullptr, "preparing to read a topology");
}

topology::HwlocHandle new_handle() {
  keep_plugins_loaded();
  hwloc_topology_t raw = nullptr;
  require(hwloc_topology_init(&raw) == 0, "preparing to read a topology");
  topology::HwlocHandle handle{raw};
  require(hwloc_topology_set_io_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_IMPORTANT) == 0 &&
              hwloc_topology_set_cache_types_filter(raw, HWLOC_TYPE_FILTER_KEEP_NONE) == 0 &&
              // On some machines GPUs are near to a part of a NUMA node that has its own L3 (HPE EX235a).
              hwloc_topology_set_type_filter(raw, HWLOC_OBJ_L3CACHE, HWLOC_TYPE_FILTER_KEEP_ALL) == 0 &&
              hwloc_topology_set_type_filter(raw, HWLOC_OBJ_MISC, HWLOC_TYPE_FILTER_KEEP_NONE) == 0 &&
              hwloc_topology_set_flags(raw, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED) == 0,
          "choosing what to read of a topology");
  return handle;
}

/// What the root object says under a name; empty if nothing.
std::string root_info(hwloc_topology_t topology, const char* name) {
  const char* value = hwloc_obj_get_info_by_name(hwloc_get_root_obj(topology), name);
  return value == nullptr ? "" : value;
}

std::string xml_of(hwloc_topology_t loaded) {
  char* buffer = nullptr;
  int size = 0;
  require(hwloc_topology_export_xmlbuffer(loaded, &buffer, &size, 0) == 0, "writing the topology as XML");
  std::string xml = buffer;
  hwloc_free_xmlbuffer(loaded, buffer);
  return xml;
}

topology::LiveFacts recorded_facts(hwloc_topology_t loaded) {
  const std::string json = root_info(loaded, topology::kFactsInfo);
  return json.empty() ? topology::LiveFacts{} : topology::facts_from_json(json);
}

/// The major version of the format in <topology version="2.0">, which hwloc 1 did not write at first; 1 then.
unsigned format_of(std::string_view element) {
  constexpr std::string_view kAttribute = "version=";
  const auto at = element.find(kAttribute);
  if (at == std::string_view::npos) return 1;
  const std::string_view value =
      element.substr(std::min(at + kAttribute.size() + 1, element.size()));  // behind a quote
  unsigned format = 1;
  std::from_chars(value.data(), value.data() + value.size(), format);
  return format;
}

/// Rejects what hwloc would misread or report in its own words.
void check_root_element(std::string_view xml, std::string_view name) {
  const std::string_view head = xml.substr(0, kHeadBytes);
  const auto root = head.find("<topology");
  if (root == std::string_view::npos) {
    reject(name, "it is not an hwloc topology: it has no <topology> element",
           "write one with 'ddp-info topo --export FILE' or 'lstopo FILE.xml'");
  }
  const std::string_view element = head.substr(root, head.find('>', root) - root);
  const unsigned format = format_of(element);
  const unsigned ours = hwloc_get_api_version() >> 16U;
  if (format < 2) reject(name, "it was written by hwloc 1", "write it again with hwloc 2 (lstopo FILE.xml)");
  if (format > ours) {
    reject(name, fmt::format("it was written by hwloc {}, and this is hwloc {}", format, HWLOC_VERSION),
           fmt::format("write it again for hwloc {} ('lstopo --of xml --export-xml-flags v{} FILE.xml'), or with "
                       "'ddp-info topo --export FILE' on that machine",
                       ours, ours));
  }
  if (xml.find("</topology>") == std::string_view::npos) {
    reject(name, "it is truncated: </topology> is missing", "copy or write the file again");
  }
}

}  // namespace

Topology Topology::live() {
  // hwloc would fall back to this machine if it cannot read the file.
  const char* file = std::getenv("HWLOC_XMLFILE");
  if (file != nullptr && *file != '\0' && std::getenv("HWLOC_THISSYSTEM") == nullptr) return from_xml_file(file);
  const topology::HwlocHandle handle = new_handle();
  // The first three start the drivers of all GPUs, and show only what *_VISIBLE_DEVICES leaves. NVML may hang, and is
  // asked with a deadline by collect_live_facts(). The last one runs on every processor in turn to ask it what Linux
  // has in /sys, too.
  for (const char* component : {"cuda", "opencl", "gl", "nvml", "x86"}) {
    hwloc_topology_set_components(handle.get(), HWLOC_TOPOLOGY_COMPONENTS_FLAG_BLACKLIST, component);
  }
  require(hwloc_topology_load(handle.get()) == 0, "reading the topology of this machine");
  topology::LiveFacts facts;
  const bool this_machine = hwloc_topology_is_thissystem(handle.get()) != 0;
  if (this_machine) {
    facts = topology::collect_live_facts();
    hwloc_obj_add_info(hwloc_get_root_obj(handle.get()), topology::kFactsInfo, topology::to_json(facts).c_str());
  } else {  // HWLOC_XMLFILE, HWLOC_SYNTHETIC or HWLOC_FSROOT
    facts = recorded_facts(handle.get());
  }
  Parts parts = topology::read_hwloc(handle.get(), facts);
  parts.source = this_machine ? "this machine" : "the machine that HWLOC_* variables describe";
  parts.xml = xml_of(handle.get());
  return from_parts(std::move(parts));
}

Topology Topology::from_xml(std::string_view xml, std::string_view name) {
  if (topology::looks_like_nccl_xml(xml)) return from_parts(topology::parts_from_nccl_xml(xml, name));
  if (xml.find_first_not_of(" \t\r\n") == std::string_view::npos) reject(name, "it is empty", "");
  if (xml.size() > kLargestXmlBytes) {
    reject(name, fmt::format("it has {} bytes; {} are allowed", xml.size(), kLargestXmlBytes), "is it the right file?");
  }
  check_root_element(xml, name);
  const topology::HwlocHandle handle = new_handle();
  std::string text{xml};
  if (hwloc_topology_set_xmlbuffer(handle.get(), text.c_str(), static_cast<int>(text.size()) + 1) != 0 ||
      hwloc_topology_load(handle.get()) != 0) {
    reject(name, "hwloc cannot read it", fmt::format("this is hwloc {}; 'lstopo -i FILE' may say more", HWLOC_VERSION));
  }
  Parts parts = topology::read_hwloc(handle.get(), recorded_facts(handle.get()));
  parts.source = name;
  parts.xml = std::move(text);
  return from_parts(std::move(parts));
}

Topology Topology::from_xml_file(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file{std::fopen(path.c_str(), "re"), &std::fclose};
  if (!file) {
    const int number = errno;
    throw Error{{.code = number == ENOENT ? ErrorCode::not_found : ErrorCode::system,
                 .attempted = fmt::format("reading the topology in file '{}'", path),
                 .cause = base::errno_text(number),
                 .native = base::errno_name(number)}};
  }
  std::string text;
  std::string block(1U << 16U, '\0');
  while (const std::size_t size = std::fread(block.data(), 1, block.size(), file.get())) {
    text.append(block, 0, size);
    if (text.size() > kLargestXmlBytes) break;
  }
  if (std::ferror(file.get()) != 0) {
    throw base::system_error(fmt::format("reading the topology in file '{}'", path), errno);
  }
  return from_xml(text, fmt::format("file '{}'", path));
}

Topology Topology::synthetic(const std::string& description) {
  const topology::HwlocHandle handle = new_handle();
  if (hwloc_topology_set_synthetic(handle.get(), description.c_str()) != 0 || hwloc_topology_load(handle.get()) != 0) {
    reject(fmt::format("the synthetic description '{}'", description), "hwloc does not understand it",
           "an example is 'pack:2 numa:2 core:8 pu:2'; see 'Synthetic topologies' in hwloc's documentation");
  }
  Parts parts = topology::read_hwloc(handle.get(), {});
  parts.source = fmt::format("'{}'", description);
  parts.xml = xml_of(handle.get());
  return from_parts(std::move(parts));
}

}  // namespace ddp
