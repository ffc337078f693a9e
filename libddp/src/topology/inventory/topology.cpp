#include <ddp/topology.hpp>

#include <cstdint>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/byte_stream.hpp"

namespace ddp {
namespace {

[[noreturn]] void reject(const std::string& source, std::string cause) {
  throw Error{{.code = ErrorCode::invalid_argument,
               .attempted = fmt::format("putting together the topology of {}", source.empty() ? "a machine" : source),
               .cause = std::move(cause)}};
}

bool in_range(int index, std::size_t size) { return index >= -1 && index < static_cast<int>(size); }

void check(const Topology::Parts& parts) {
  const auto check_place = [&](int package, int numa_node, std::string_view what, std::size_t i) {
    if (!in_range(package, parts.packages.size()) || !in_range(numa_node, parts.numa_nodes.size())) {
      reject(parts.source, fmt::format("{} {} lies in package {} and NUMA node {}, but there are {} and {}", what, i,
                                       package, numa_node, parts.packages.size(), parts.numa_nodes.size()));
    }
  };
  CpuSet seen;
  for (std::size_t i = 0; i < parts.cores.size(); ++i) {
    const Core& core = parts.cores[i];
    check_place(core.package, core.numa_node, "core", i);
    if (core.cpus.empty()) reject(parts.source, fmt::format("core {} has no processor", i));
    if (seen.intersects(core.cpus)) {
      reject(parts.source,
             fmt::format("a processor of core {} ({}) belongs to an earlier core, too", i, core.cpus.to_string()));
    }
    seen = seen | core.cpus;
  }
  if (seen.empty()) reject(parts.source, "it has no cores");
  if (!parts.allowed.empty() && !parts.allowed.intersects(seen)) {
    reject(parts.source,
           fmt::format("none of its processors ({}) is allowed ({})", seen.to_string(), parts.allowed.to_string()));
  }
  for (std::size_t i = 0; i < parts.numa_nodes.size(); ++i) {
    check_place(parts.numa_nodes[i].package, -1, "NUMA node", i);
  }
  for (std::size_t i = 0; i < parts.gpus.size(); ++i) {
    const Gpu& gpu = parts.gpus[i];
    check_place(gpu.locality.package, gpu.locality.numa_node, "GPU", i);
    if (gpu.index != static_cast<int>(i)) reject(parts.source, fmt::format("GPU {} has index {}", i, gpu.index));
  }
  for (std::size_t i = 0; i < parts.nics.size(); ++i) {
    const Nic& nic = parts.nics[i];
    check_place(nic.locality.package, nic.locality.numa_node, "NIC", i);
    if (nic.index != static_cast<int>(i)) reject(parts.source, fmt::format("NIC {} has index {}", i, nic.index));
  }
  const std::size_t pairs = parts.gpus.size() * parts.gpus.size();
  if (!parts.gpu_links.empty() && parts.gpu_links.size() != pairs) {
    reject(parts.source, fmt::format("{} bandwidths for {} pairs of GPUs", parts.gpu_links.size(), pairs));
  }
}

class Fingerprint {
 public:
  void add(std::string_view text) { hash_.add(text).add("\xff"); }  // so that "a", "b" differs from "ab"
  void add(long long number) { add(std::string_view{fmt::to_string(number)}); }
  std::uint64_t value() const { return hash_.value(); }

 private:
  base::Fnv1a hash_;
};

}  // namespace

Topology::Topology(Parts parts) : parts_(std::move(parts)) {
  for (const Core& core : parts_.cores) cpus_ = cpus_ | core.cpus;
  parts_.allowed = parts_.allowed.empty() ? cpus_ : parts_.allowed & cpus_;
}

Topology Topology::from_parts(Parts parts) {
  check(parts);
  return Topology{std::move(parts)};
}

Topology Topology::with_visible_gpus(const std::function<bool(const Gpu&)>& visible, const std::string& reason) const {
  Parts parts = parts_;
  parts.xml.clear();
  for (Gpu& gpu : parts.gpus) {
    const bool shown = visible(gpu);
    if (shown) gpu.hidden_reason.clear();
    if (!shown && gpu.visible) gpu.hidden_reason = reason;
    gpu.visible = shown;
  }
  return Topology{std::move(parts)};
}

const std::string& Topology::to_xml() const {
  if (!parts_.xml.empty()) return parts_.xml;
  throw Error{{.code = ErrorCode::unavailable,
               .attempted = fmt::format("writing the topology of {} as XML", parts_.source),
               .cause = "it does not come from hwloc",
               .hint = "use the file that it was read from"}};
}

double Topology::link_bandwidth(const Gpu& a, const Gpu& b) const {
  if (parts_.gpu_links.empty()) return 0;
  return parts_.gpu_links.at(static_cast<std::size_t>(a.index) * parts_.gpus.size() +
                             static_cast<std::size_t>(b.index));
}

Distance Topology::distance(const Gpu& a, const Gpu& b) const {
  if (a.index == b.index) return {Path::self, false, 0};
  if (link_bandwidth(a, b) > 0) return {Path::nvlink, false, 0};
  return ddp::distance(a.locality, b.locality);
}

Distance Topology::distance(const Locality& device, const NumaNode& node) const {
  if (device.numa_node >= 0) {
    const NumaNode& own = parts_.numa_nodes.at(static_cast<std::size_t>(device.numa_node));
    if (own.os_index == node.os_index) return {Path::phb, false, 0};
    return {Path::sys, device.package < 0 || device.package != node.package, 0};
  }
  if (device.package >= 0 && node.package >= 0) return {Path::sys, device.package != node.package, 0};
  return {Path::unknown, false, 0};
}

std::string Topology::shape() const {
  Fingerprint print;
  const auto add_place = [&](const Locality& place) {
    print.add(place.package);
    print.add(place.numa_node);
    for (const int bridge : place.bridges) print.add(bridge);
  };
  for (const Package& package : parts_.packages) print.add(package.cpus.to_string());
  for (const NumaNode& node : parts_.numa_nodes) print.add(fmt::format("{}:{}", node.os_index, node.cpus.to_string()));
  for (const Core& core : parts_.cores) print.add(core.cpus.to_string());
  print.add(parts_.allowed.to_string());
  for (const Gpu& gpu : parts_.gpus) {
    print.add(gpu.pci.to_string());
    print.add(gpu.model);
    print.add(gpu.visible);
    print.add(static_cast<long long>(gpu.mig.size()));
    add_place(gpu.locality);
  }
  for (const Nic& nic : parts_.nics) {
    print.add(nic.name());
    print.add(nic.pci ? nic.pci->to_string() : std::string());
    print.add(nic.usable);
    add_place(nic.locality);
  }
  for (const double bandwidth : parts_.gpu_links) print.add(static_cast<long long>(bandwidth));
  return fmt::format("{:016x}", print.value());
}

}  // namespace ddp
