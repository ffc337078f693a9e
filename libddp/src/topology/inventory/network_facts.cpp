#include "topology/inventory/network_facts.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <iterator>
#include <memory>
#include <span>
#include <sstream>
#include <string_view>

#include "base/errors.hpp"
#include "topology/inventory/sysfs.hpp"

namespace ddp::topology {
namespace {

namespace fs = std::filesystem;

constexpr unsigned kNetworkClass = 0x02;
// Layers of virtual interfaces: VLAN on bond on hardware is three. More are a mistake or a cycle.
constexpr int kMostLayers = 8;
// Docker names the bridges of its networks by the first 12 hexadecimal digits of the network's id.
constexpr std::size_t kDockerIdDigits = 12;

constexpr std::string_view kHostOnlyNames[] = {"docker", "virbr", "veth",   "cni",  "flannel",
                                               "cali",   "lxc",   "podman", "dummy"};
// DEVTYPE in the uevent of drivers that tunnel packets (Linux drivers/net: SET_NETDEV_DEVTYPE).
constexpr std::string_view kTunnelTypes[] = {"wireguard", "vxlan", "geneve", "gtp", "ppp"};
constexpr long long kTunnelHardware[] = {ARPHRD_TUNNEL,           ARPHRD_TUNNEL6, ARPHRD_SIT, ARPHRD_IPGRE,
                                         823 /* ARPHRD_IP6GRE */, ARPHRD_PPP,     65534 /* ARPHRD_NONE */};

template <class Container, class Value>
bool contains(const Container& values, const Value& value) {
  return std::find(std::begin(values), std::end(values), value) != std::end(values);
}

int prefix_length(const sockaddr* mask) {
  if (mask == nullptr) return 0;
  std::span<const unsigned char> bytes;
  if (mask->sa_family == AF_INET) {
    const auto& bits = reinterpret_cast<const sockaddr_in*>(mask)->sin_addr;
    bytes = {reinterpret_cast<const unsigned char*>(&bits), sizeof bits};
  } else {
    const auto& bits = reinterpret_cast<const sockaddr_in6*>(mask)->sin6_addr;
    bytes = {bits.s6_addr, sizeof bits.s6_addr};
  }
  int length = 0;
  for (const unsigned char byte : bytes) length += std::popcount(byte);
  return length;
}

/// Numeric and without the scope that getnameinfo(3) would add.
std::string numeric(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = {};
  const void* bits = address->sa_family == AF_INET
                         ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in*>(address)->sin_addr)
                         : static_cast<const void*>(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
  return inet_ntop(address->sa_family, bits, text, sizeof text) == nullptr ? "" : text;
}

bool is_link_local(const InterfaceAddress& address) {
  if (!address.ipv6) return address.address.starts_with("169.254.");
  in6_addr bits{};
  return inet_pton(AF_INET6, address.address.c_str(), &bits) == 1 && IN6_IS_ADDR_LINKLOCAL(&bits);
}

bool has_host_only_name(std::string_view name) {
  if (std::any_of(std::begin(kHostOnlyNames), std::end(kHostOnlyNames),
                  [&](std::string_view beginning) { return name.starts_with(beginning); })) {
    return true;
  }
  return name.starts_with("br-") && name.size() == 3 + kDockerIdDigits &&
         name.find_first_not_of("0123456789abcdef", 3) == std::string_view::npos;
}

/// One interface's folder in sys/class/net.
class InterfaceFolder {
 public:
  InterfaceFolder(const fs::path& sys, const std::string& name)
      : all_(sys / "class/net"),
        folder_(all_ / name),
        devtype_(read_field(folder_ / "uevent", "DEVTYPE", '=').value_or("")) {}

  const std::string& devtype() const { return devtype_; }
  bool has(const char* entry) const { return has_entry(folder_ / entry); }
  bool is_bond() const { return has("bonding") || devtype_ == "bond"; }
  bool is_bridge() const { return has("bridge") || devtype_ == "bridge"; }
  bool is_vlan() const { return devtype_ == "vlan"; }
  std::optional<long long> number(const char* entry) const { return read_number(folder_ / entry); }
  std::optional<PciAddress> pci() const { return pci_address_of(folder_); }
  std::string master() const { return link_name(folder_ / "master"); }

  /// The interfaces below this one in the same network namespace, ascending.
  std::vector<std::string> lower() const {
    constexpr std::string_view kPrefix = "lower_";
    std::vector<std::string> names;
    for (const std::string& entry : names_in(folder_)) {
      if (entry.starts_with(kPrefix)) names.push_back(entry.substr(kPrefix.size()));
    }
    return names;
  }

  std::vector<std::string> slaves() const {
    if (is_bridge()) return names_in(folder_ / "brif");
    if (is_bond()) {
      std::istringstream words(read_attribute(folder_ / "bonding/slaves").value_or(""));
      std::vector<std::string> names{std::istream_iterator<std::string>(words), {}};
      std::sort(names.begin(), names.end());
      return names;
    }
    return is_vlan() ? lower() : std::vector<std::string>{};
  }

  bool is_bond_slave() const {
    if (has("bonding_slave")) return true;
    const std::string above = master();
    return !above.empty() && has_entry(all_ / above / "bonding");
  }

  /// Whether it is one end of a pair whose other end is beside it or in another network namespace: nothing is below it,
  /// but it links to an interface with another number. Drivers with such a link and another meaning (macvlan, vxlan)
  /// have a DEVTYPE.
  bool is_veth() const {
    const auto own = number("ifindex");
    const auto linked = number("iflink");
    return own && linked && *own != *linked && *linked > 0 && devtype_.empty() && number("type") == ARPHRD_ETHER &&
           !has("device") && lower().empty();
  }

  double rate_gbps() const {
    const auto mbps = number("speed");  // -1, unsigned in old kernels, if the driver does not know
    if (!mbps || *mbps <= 0 || *mbps >= 0x7fffffff) return 0;
    return static_cast<double>(*mbps) / 1000;
  }

 private:
  fs::path all_;
  fs::path folder_;
  std::string devtype_;
};

/// Whether packets that enter @p name can leave this host by a device: directly, or through a lower interface.
bool reaches_hardware(const fs::path& sys, const std::string& name, int layers = kMostLayers) {
  const InterfaceFolder folder{sys, name};
  if (folder.has("device")) return true;
  if (layers == 0) return false;
  const auto below = folder.slaves();
  return std::any_of(below.begin(), below.end(),
                     [&](const std::string& slave) { return reaches_hardware(sys, slave, layers - 1); });
}

InterfaceKind kind_of(const fs::path& sys, const RawInterface& raw, const InterfaceFolder& folder, bool has_address) {
  if (folder.is_bond()) return InterfaceKind::bond;
  if (folder.is_bond_slave()) return InterfaceKind::bond_slave;
  if (folder.is_bridge()) {
    return reaches_hardware(sys, raw.name) ? InterfaceKind::bridge : InterfaceKind::host_only;
  }
  if (folder.is_vlan()) return InterfaceKind::vlan;
  if (folder.has("device")) return InterfaceKind::hardware;
  const bool host_only_name = has_host_only_name(raw.name);  // "veth" among them
  const bool attached = has_address && folder.master().empty();
  // For an attached interface with another name it does not matter, and finding out takes a dozen system calls.
  if ((host_only_name || !attached) && (folder.is_veth() || raw.name.starts_with("veth"))) {
    // Inside a container or network namespace, such an end leads to the outside.
    return attached ? InterfaceKind::other : InterfaceKind::host_only;
  }
  if (host_only_name) return InterfaceKind::host_only;
  const long long hardware_type = folder.number("type").value_or(-1);
  if (hardware_type == ARPHRD_LOOPBACK) return InterfaceKind::loopback;
  if (folder.has("tun_flags") || contains(kTunnelTypes, folder.devtype()) || contains(kTunnelHardware, hardware_type)) {
    return InterfaceKind::tunnel;
  }
  return InterfaceKind::other;
}

/// What flags and addresses show, without reading /sys.
InterfaceFact without_details(const RawInterface& raw) {
  InterfaceFact fact;
  NetworkInterface& interface = fact.interface;
  interface.name = raw.name;
  interface.up = (raw.flags & IFF_UP) != 0 && (raw.flags & IFF_RUNNING) != 0;
  std::remove_copy_if(raw.addresses.begin(), raw.addresses.end(), std::back_inserter(interface.addresses),
                      is_link_local);
  std::stable_partition(interface.addresses.begin(), interface.addresses.end(),
                        [](const InterfaceAddress& address) { return !address.ipv6; });
  interface.kind = (raw.flags & IFF_LOOPBACK) != 0 ? InterfaceKind::loopback : InterfaceKind::other;
  return fact;
}

/// @param compared whether it is one of several: only then do rate and adapter matter
InterfaceFact read_interface(const fs::path& sys, const RawInterface& raw, bool compared) {
  InterfaceFact fact = without_details(raw);
  NetworkInterface& interface = fact.interface;
  if (interface.kind == InterfaceKind::loopback) return fact;
  const InterfaceFolder folder{sys, raw.name};
  interface.kind = kind_of(sys, raw, folder, !interface.addresses.empty());
  if (!compared) return fact;
  interface.rate_gbps = folder.rate_gbps();
  if (interface.kind == InterfaceKind::bond_slave) interface.bond = folder.master();
  interface.slaves = folder.slaves();
  fact.pci = folder.pci();
  return fact;
}

NicPort read_port(const fs::path& folder, int number) {
  NicPort port;
  port.number = number;
  const std::string state = read_attribute(folder / "state").value_or("");  // "4: ACTIVE"
  const auto word = state.find(": ");
  port.state = word == std::string::npos ? state : state.substr(word + 2);
  port.link_layer = read_attribute(folder / "link_layer").value_or("");
  const std::string rate = read_attribute(folder / "rate").value_or("");  // "400 Gb/sec (4X NDR)"
  double gbps = 0;
  const auto [end, status] = std::from_chars(rate.data(), rate.data() + rate.size(), gbps);
  const std::string_view unit{end, static_cast<std::size_t>(rate.data() + rate.size() - end)};
  if (status == std::errc{} && std::isfinite(gbps) && gbps > 0 && unit.starts_with(" Gb/sec")) port.rate_gbps = gbps;
  return port;
}

}  // namespace

std::vector<RawInterface> list_raw_interfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) throw base::system_error("listing the network interfaces (getifaddrs)", errno);
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, &freeifaddrs);
  std::vector<RawInterface> interfaces;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    const std::string_view label = entry->ifa_name;
    const std::string_view name = label.substr(0, label.find(':'));
    auto known = std::find_if(interfaces.begin(), interfaces.end(),
                              [&](const RawInterface& interface) { return interface.name == name; });
    if (known == interfaces.end()) {
      interfaces.push_back({.name = std::string(name), .flags = entry->ifa_flags});
      known = std::prev(interfaces.end());
    }
    const int family = entry->ifa_addr == nullptr ? AF_UNSPEC : entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    known->addresses.push_back({.address = numeric(entry->ifa_addr),
                                .prefix_length = prefix_length(entry->ifa_netmask),
                                .ipv6 = family == AF_INET6});
  }
  return interfaces;
}

std::vector<InterfaceFact> read_interfaces(const fs::path& sys, const std::vector<RawInterface>& raw) {
  std::vector<InterfaceFact> facts;
  facts.reserve(raw.size());
  for (const RawInterface& interface : raw) facts.push_back(read_interface(sys, interface, true));
  return facts;
}

std::vector<InterfaceFact> read_usable_interfaces() {
  const std::vector<RawInterface> all = list_raw_interfaces();
  std::vector<InterfaceFact> facts;
  std::transform(all.begin(), all.end(), std::back_inserter(facts), without_details);
  const auto usable = [](const InterfaceFact& fact) {
    const NetworkInterface& interface = fact.interface;
    return interface.up && !interface.addresses.empty() && interface.kind != InterfaceKind::loopback;
  };
  const bool several = std::count_if(facts.begin(), facts.end(), usable) > 1;
  for (std::size_t i = 0; i < facts.size(); ++i) {
    if (usable(facts[i])) facts[i] = read_interface("/sys", all[i], several);
  }
  return facts;
}

std::vector<RdmaFact> read_rdma_devices(const fs::path& sys) {
  std::vector<RdmaFact> devices;
  const fs::path all = sys / "class/infiniband";
  for (const std::string& name : names_in(all)) {
    RdmaFact device{.name = name, .pci = pci_address_of(all / name)};
    for (const std::string& port : names_in(all / name / "ports")) {
      int number = 0;
      const auto [end, status] = std::from_chars(port.data(), port.data() + port.size(), number);
      if (status != std::errc{} || end != port.data() + port.size()) continue;
      device.ports.push_back(read_port(all / name / "ports" / port, number));
    }
    std::sort(device.ports.begin(), device.ports.end(),
              [](const NicPort& a, const NicPort& b) { return a.number < b.number; });
    devices.push_back(std::move(device));
  }
  return devices;
}

std::vector<PciAddress> read_virtual_functions(const fs::path& sys) {
  std::vector<PciAddress> functions = pci_functions(sys, {kNetworkClass});
  std::erase_if(functions, [&](const PciAddress& address) { return !has_entry(pci_folder(sys, address) / "physfn"); });
  return functions;
}

}  // namespace ddp::topology
