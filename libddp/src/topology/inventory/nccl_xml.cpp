#include "topology/inventory/nccl_xml.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "topology/inventory/nic_inventory.hpp"

namespace ddp::topology {
namespace {

// Far above any machine; a larger number means a damaged file.
constexpr std::size_t kMostDevices = 1024;
constexpr int kMostLinksOfDevice = 1000;
constexpr int kDeepestSwitch = 64;
constexpr std::size_t kAffinityWords = 8192 / 32;  // Linux' largest CONFIG_NR_CPUS

constexpr unsigned kNvSwitchClass = 0x068000;

/// The number at the beginning of "16.0 GT/s PCIe"; 0 if there is none ("Unknown").
double leading_number(std::string_view text) {
  double value = 0;
  const auto status = std::from_chars(text.data(), text.data() + text.size(), value).ec;
  return status == std::errc{} && std::isfinite(value) && value > 0 ? value : 0;
}

/// Gbit/s of a PCI link without the bits of its encoding: 8b/10b up to 5 GT/s, 128b/130b above.
double pci_gbps(const pugi::xml_node& pci) {
  const double transfers = leading_number(pci.attribute("link_speed").value());
  const double lanes = leading_number(pci.attribute("link_width").value());
  return transfers * lanes * (transfers > 5 ? 128.0 / 130.0 : 0.8);
}

/// Nominal bandwidth of one NVLink in one direction in MB/s, by compute capability (NVIDIA's data sheets): 20 GB/s for
/// NVLink 1 (Pascal), 25 for 2 to 4 (Volta to Hopper), 50 for 5 (Blackwell), and 14 for the bridges of GA10x.
double nvlink_mb_per_s(int sm) {
  if (sm >= 100) return 50000;
  if (sm == 86) return 14062.5;
  return sm >= 60 && sm < 70 ? 20000 : 25000;
}

// One XGMI link of 16 lanes at 25 GT/s (AMD MI100 and MI200).
constexpr double kXgmiMbPerS = 50000;

/// The ports in "mlx5_0+mlx5_1", as NCCL names ports that it has joined to one device (NCCL 2.23 and newer).
std::vector<std::string> joined_names(std::string_view name) {
  std::vector<std::string> names;
  while (!name.empty()) {
    const auto plus = name.find('+');
    if (plus != 0) names.emplace_back(name.substr(0, plus));
    if (plus == std::string_view::npos) break;
    name.remove_prefix(plus + 1);
  }
  return names;
}

class Reader {
 public:
  Reader(std::string_view xml, std::string_view name) : xml_(xml), name_(name) {}

  Topology::Parts read() {
    pugi::xml_document document;
    const pugi::xml_parse_result result =
        document.load_buffer(xml_.data(), xml_.size(), pugi::parse_default, pugi::encoding_utf8);
    if (!result) fail_at(result.offset, result.description(), "is it complete?");
    const pugi::xml_node system = document.document_element();
    if (std::string_view{system.name()} != "system") {
      fail(system, fmt::format("the root element is <{}>, not <system>", system.name()), "is it NCCL's format?");
    }
    vendors_ = NcclXmlVendors{system};
    for (const pugi::xml_node& cpu : system.children("cpu")) read_cpu(cpu);
    if (parts_.cores.empty()) {
      fail(system, "no <cpu> has a processor in its affinity", "write it again with NCCL_TOPO_DUMP_FILE");
    }
    finish();
    return std::move(parts_);
  }

 private:
  struct Link {
    bool to_switch = false;
    std::optional<PciAddress> target;
    double mb_per_s = 0;
  };
  struct FoundGpu {
    Gpu gpu;
    std::vector<Link> links;
  };

  [[noreturn]] void fail_at(std::ptrdiff_t offset, std::string cause, std::string hint) const {
    const auto before = xml_.substr(0, static_cast<std::size_t>(std::max<std::ptrdiff_t>(offset, 0)));
    const auto line = std::count(before.begin(), before.end(), '\n') + 1;
    throw Error{{.code = ErrorCode::invalid_argument,
                 .attempted = fmt::format("reading NCCL's topology in {}", name_),
                 .cause = fmt::format("line {}: {}", line, cause),
                 .hint = std::move(hint)}};
  }
  [[noreturn]] void fail(const pugi::xml_node& node, std::string cause, std::string hint) const {
    fail_at(node.offset_debug(), std::move(cause), std::move(hint));
  }

  /// Parses /sys/devices/system/node/node0/cpumap: hexadecimal words of 32 processors, the highest first.
  CpuSet affinity_of(const pugi::xml_node& cpu) const {
    std::string_view text = cpu.attribute("affinity").value();
    std::vector<std::string_view> words;
    for (std::string_view rest = text; !rest.empty();) {
      const auto comma = rest.find(',');
      words.push_back(rest.substr(0, comma));
      rest = comma == std::string_view::npos ? std::string_view{} : rest.substr(comma + 1);
    }
    const char* const hint = "it must be words of up to eight hexadecimal digits with commas, the highest first";
    if (text.ends_with(',')) fail(cpu, fmt::format("affinity=\"{}\" ends with a comma", text), hint);
    if (words.size() > kAffinityWords) fail(cpu, fmt::format("affinity has {} words", words.size()), hint);
    CpuSet cpus;
    for (std::size_t i = 0; i < words.size(); ++i) {
      std::uint32_t bits = 0;
      const std::string_view word = words[i];
      const auto [end, status] = std::from_chars(word.data(), word.data() + word.size(), bits, 16);
      if (word.empty() || status != std::errc{} || end != word.data() + word.size()) {
        fail(cpu, fmt::format("'{}' in affinity=\"{}\" is not a word of a mask", word, text), hint);
      }
      const int first = static_cast<int>(words.size() - 1 - i) * 32;
      for (int bit = 0; bit < 32; ++bit) {
        if (((bits >> bit) & 1U) != 0) cpus.insert(first + bit);
      }
    }
    return cpus;
  }

  void read_cpu(const pugi::xml_node& cpu) {
    // NCCL can describe all hosts of an NVLink domain in one file.
    const std::string_view host = cpu.attribute("host_hash").value();
    if (parts_.numa_nodes.empty()) host_ = host;
    if (host != host_) {
      fail(cpu, "it describes several hosts (host_hash differs)", "write it on one node, with NCCL_MNNVL_ENABLE=0");
    }
    const std::string_view number = cpu.attribute("numaid").value();
    const auto numa = number_in(number);
    if (!numa || *numa < -1 || *numa > CpuSet::kLargest) {
      fail(cpu, fmt::format("numaid=\"{}\" is not the number of a NUMA node", number), "is it NCCL's format?");
    }
    for (const NumaNode& node : parts_.numa_nodes) {
      if (node.os_index == *numa) fail(cpu, fmt::format("NUMA node {} appears twice", *numa), "remove one of them");
    }
    const CpuSet cpus = affinity_of(cpu) - seen_;  // a processor of several nodes belongs to the first
    seen_ = seen_ | cpus;
    const int index = static_cast<int>(parts_.numa_nodes.size());
    parts_.numa_nodes.push_back({.os_index = *numa, .package = -1, .cpus = cpus, .memory_bytes = 0});
    // The format has neither cores nor packages. One core per processor makes ranks' shares even; hardware threads of
    // a core may go to different ranks.
    for (const int processor : cpus.to_vector()) {
      parts_.cores.push_back({.numa_node = index, .package = -1, .cpus = CpuSet{std::vector<int>{processor}}});
    }
    const Locality place{.package = -1, .numa_node = index, .cpus = cpus, .bridges = {next_bridge_++}};
    for (const pugi::xml_node& pci : cpu.children("pci")) read_pci(pci, place, 1);
    // NCCL puts a NIC without a bus below the first <cpu>, wherever the NIC is.
    for (const pugi::xml_node& nic : cpu.children("nic")) read_nic(nic, {}, Locality{});
  }

  void read_pci(const pugi::xml_node& pci, const Locality& place, int depth) {
    const std::string_view busid = pci.attribute("busid").value();
    const auto address = PciAddress::parse(busid);
    if (!address) {
      fail(pci, fmt::format("busid=\"{}\" is not a PCI address", busid), "an address looks like 0000:3b:00.0");
    }
    const unsigned base_class = hex_attribute(pci, "class").value_or(0) >> 16;
    const bool is_gpu = base_class == pci::kDisplay || pci.child("gpu");
    const bool is_nic = base_class == pci::kNetwork || pci.child("nic");
    if ((is_gpu || is_nic) && !addresses_.insert(*address).second) {
      fail(pci, fmt::format("two devices have the address {}", busid), "remove one of them");
    }
    if (is_gpu) {
      read_gpu(pci, *address, place);
    } else if (is_nic) {
      read_nic(pci.child("nic"), pci, place);
    } else {
      read_switch(pci, place, depth);
    }
  }

  /// NCCL writes one element for a PCI switch. It has an upstream port, and a downstream port for each device below it;
  /// both are bridges, as in hwloc's trees.
  void read_switch(const pugi::xml_node& pci, const Locality& place, int depth) {
    if (depth > kDeepestSwitch) fail(pci, fmt::format("more than {} switches in a row", kDeepestSwitch), "");
    Locality below = place;
    below.bridges.push_back(next_bridge_++);
    below.bridges.push_back(0);
    for (const pugi::xml_node& child : pci.children("pci")) {
      below.bridges.back() = next_bridge_++;
      read_pci(child, below, depth + 1);
    }
  }

  static std::string model_of(const pugi::xml_node& pci) {
    const auto vendor = hex_attribute(pci, "vendor");
    const auto device = hex_attribute(pci, "device");
    return vendor && device ? fmt::format("{:04x}:{:04x}", *vendor, *device) : std::string();
  }

  void read_gpu(const pugi::xml_node& pci, const PciAddress& address, const Locality& place) {
    if (gpus_.size() == kMostDevices) fail(pci, fmt::format("more than {} GPUs", kMostDevices), "");
    FoundGpu found;
    found.gpu.pci = address;
    const unsigned vendor = vendors_.of(pci);
    found.gpu.vendor = vendor == pci::kNvidia ? Vendor::nvidia : vendor == pci::kAmd ? Vendor::amd : Vendor::other;
    found.gpu.model = model_of(pci);
    if (found.gpu.model.empty()) found.gpu.model = fmt::format("{} GPU", to_string(found.gpu.vendor));
    found.gpu.locality = place;
    const pugi::xml_node gpu = pci.child("gpu");
    if (const auto dev = number_in(gpu.attribute("dev").value()); dev && *dev >= 0) found.gpu.vendor_index = dev;
    const int sm = number_in(gpu.attribute("sm").value()).value_or(0);
    for (const pugi::xml_node& link : gpu.children("nvlink")) add_link(link, nvlink_mb_per_s(sm), found.links);
    for (const pugi::xml_node& link : gpu.children("xgmi")) add_link(link, kXgmiMbPerS, found.links);
    gpus_.push_back(std::move(found));
  }

  void add_link(const pugi::xml_node& link, double mb_per_s, std::vector<Link>& links) const {
    const std::string_view text = link.attribute("count").value();
    const auto count = number_in(text);
    if (!count || *count < 0 || *count > kMostLinksOfDevice) {
      fail(link, fmt::format("count=\"{}\" is not a number of links", text),
           fmt::format("it is 1 to {}", kMostLinksOfDevice));
    }
    // A target that is not a GPU of this machine (a CPU, or an address that a hypervisor hides) is simply not found
    // later.
    links.push_back({.to_switch = hex_attribute(link, "tclass") == kNvSwitchClass,
                     .target = PciAddress::parse(link.attribute("target").value()),
                     .mb_per_s = *count * mb_per_s});
  }

  void read_nic(const pugi::xml_node& nic, const pugi::xml_node& pci, const Locality& place) {
    Nic plain;
    if (pci) plain.pci = PciAddress::parse(pci.attribute("busid").value());
    plain.model = model_of(pci);
    if (plain.model.empty()) plain.model = "network adapter";
    plain.rate_gbps = pci_gbps(pci);
    plain.fabric = true;
    plain.locality = place;
    const std::size_t first = parts_.nics.size();
    for (const pugi::xml_node& net : nic.children("net")) {
      for (const std::string& name : joined_names(net.attribute("name").value())) read_net(net, name, plain, first);
    }
    if (parts_.nics.size() == first) parts_.nics.push_back(plain);  // finish() names it
    if (parts_.nics.size() > kMostDevices) fail(pci ? pci : nic, fmt::format("more than {} NICs", kMostDevices), "");
  }

  /// Ports of an RDMA device are numbered from 1, and only active ones are listed (NCCL 2.28 net_ib/init.cc). The
  /// socket transport gives all its interfaces port 0 (net_socket.cc).
  void read_net(const pugi::xml_node& net, const std::string& name, const Nic& plain, std::size_t first) {
    const int port = number_in(net.attribute("port").value()).value_or(0);
    const double gbps = leading_number(net.attribute("speed").value()) / 1000;  // speed is in Mbit/s
    auto nic = std::find_if(parts_.nics.begin() + static_cast<std::ptrdiff_t>(first), parts_.nics.end(),
                            [&](const Nic& seen) { return seen.rdma_device == name || seen.interface == name; });
    double rate = gbps;
    if (nic == parts_.nics.end()) {
      nic = parts_.nics.insert(nic, plain);
    } else {
      rate = std::max(rate, nic->rate_gbps);
    }
    if (rate > 0) nic->rate_gbps = rate;
    if (port < 1) {
      nic->interface = name;
      nic->fabric = false;
      return;
    }
    nic->rdma_device = name;
    const bool listed =
        std::any_of(nic->ports.begin(), nic->ports.end(), [&](const NicPort& seen) { return seen.number == port; });
    if (!listed) nic->ports.push_back({.number = port, .state = "ACTIVE", .rate_gbps = gbps});
  }

  void finish() {
    std::sort(gpus_.begin(), gpus_.end(), [](const auto& a, const auto& b) { return a.gpu.pci < b.gpu.pci; });
    for (FoundGpu& found : gpus_) {
      found.gpu.index = static_cast<int>(parts_.gpus.size());
      complete(found.gpu.locality);
      parts_.gpus.push_back(found.gpu);
    }
    finish_links();
    std::sort(parts_.nics.begin(), parts_.nics.end(), [](const Nic& a, const Nic& b) {
      return std::tie(a.pci, a.interface, a.rdma_device) < std::tie(b.pci, b.interface, b.rdma_device);
    });
    for (std::size_t i = 0; i < parts_.nics.size(); ++i) {
      Nic& nic = parts_.nics[i];
      nic.index = static_cast<int>(i);
      complete(nic.locality);
    }
    parts_.interfaces = interfaces_of(parts_.nics);
    for (Nic& nic : parts_.nics) {  // a label; the kernel's name is unknown
      if (nic.interface.empty() && nic.rdma_device.empty()) nic.interface = fmt::format("nic{}", nic.index);
    }
    parts_.source = name_;
  }

  /// Without better knowledge, all processors of the machine are near a device.
  void complete(Locality& place) const {
    if (place.cpus.empty()) place.cpus = seen_;
  }

  void finish_links() {
    const std::size_t size = gpus_.size();
    std::vector<double> to_switches(size, 0);
    std::vector<double> links(size * size, 0);
    for (std::size_t a = 0; a < size; ++a) {
      for (const Link& link : gpus_[a].links) {
        if (link.to_switch) to_switches[a] += link.mb_per_s;
        if (link.to_switch || !link.target) continue;
        const auto found = std::lower_bound(parts_.gpus.begin(), parts_.gpus.end(), *link.target,
                                            [](const Gpu& gpu, const PciAddress& wanted) { return gpu.pci < wanted; });
        if (found == parts_.gpus.end() || found->pci != *link.target || found->index == static_cast<int>(a)) continue;
        links[a * size + static_cast<std::size_t>(found->index)] += link.mb_per_s;
      }
    }
    // A link has two ends, and a file may name only one; switches connect every GPU that has a link to them.
    for (std::size_t a = 0; a < size; ++a) {
      for (std::size_t b = a + 1; b < size; ++b) {
        const double direct = std::max(links[a * size + b], links[b * size + a]);
        links[a * size + b] = links[b * size + a] = std::max(direct, std::min(to_switches[a], to_switches[b]));
      }
    }
    if (std::any_of(links.begin(), links.end(), [](double bandwidth) { return bandwidth > 0; })) {
      parts_.gpu_links = std::move(links);
    }
  }

  std::string_view xml_;
  std::string_view name_;
  Topology::Parts parts_;
  std::vector<FoundGpu> gpus_;
  std::set<PciAddress> addresses_;
  CpuSet seen_;
  std::string_view host_;
  int next_bridge_ = 0;
  NcclXmlVendors vendors_;
};

}  // namespace

bool looks_like_nccl_xml(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
  for (;;) {
    text.remove_prefix(std::min(text.find_first_not_of(kSpace), text.size()));
    const std::string_view end = text.starts_with("<!--")        ? "-->"
                                 : text.starts_with("<?")        ? "?>"
                                 : text.starts_with("<!DOCTYPE") ? ">"
                                                                 : "";
    if (end.empty()) break;
    const auto found = text.find(end, 2);
    if (found == std::string_view::npos) return false;
    text.remove_prefix(found + end.size());
  }
  constexpr std::string_view kRoot = "<system";
  if (!text.starts_with(kRoot)) return false;
  text.remove_prefix(kRoot.size());
  return text.empty() || std::string_view{" \t\r\n/>"}.find(text.front()) != std::string_view::npos;
}

Topology::Parts parts_from_nccl_xml(std::string_view xml, std::string_view name) { return Reader{xml, name}.read(); }

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
