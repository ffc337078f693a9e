#include "doctor/nccl_network.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include <fmt/format.h>

#include "topology/network/interface_agreement.hpp"
#include "topology/network/user_interfaces.hpp"

namespace ddp::tools::doctor {
namespace {

constexpr std::size_t kMostInterfaces = 16;  // MAX_IFS, include/socket.h

std::string_view value_of(const Variables& variables, std::string_view name) {
  const auto found = variables.find(name);
  return found == variables.end() ? std::string_view{} : std::string_view{found->second};
}

bool is_ipv6_link_local(const InterfaceAddress& address) {
  return address.ipv6 && (address.address.starts_with("fe8") || address.address.starts_with("fe9") ||
                          address.address.starts_with("fea") || address.address.starts_with("feb"));
}

/// The kernel lists all IPv4 addresses before all IPv6 ones, and NCCL takes an interface's first.
std::vector<SocketChoice> in_kernel_order(const std::vector<InterfaceFacts>& interfaces, std::string_view family) {
  std::vector<SocketChoice> found;
  for (const bool ipv6 : {false, true}) {
    if (family == (ipv6 ? "AF_INET" : "AF_INET6")) continue;
    for (const InterfaceFacts& interface : interfaces) {
      if (!interface.running || (ipv6 && interface.kind == InterfaceKind::loopback)) continue;
      const auto known = [&](const SocketChoice& choice) { return choice.interface == &interface; };
      if (std::any_of(found.begin(), found.end(), known)) continue;
      const auto address = std::find_if(interface.addresses.begin(), interface.addresses.end(),
                                        [&](const InterfaceAddress& each) { return each.ipv6 == ipv6; });
      if (address != interface.addresses.end()) found.push_back({.interface = &interface, .address = *address});
    }
  }
  return found;
}

template <class Wanted>
std::vector<SocketChoice> those(const std::vector<SocketChoice>& all, Wanted wanted) {
  std::vector<SocketChoice> left;
  for (const SocketChoice& choice : all) {
    if (left.size() < kMostInterfaces && wanted(std::string_view{choice.interface->name})) left.push_back(choice);
  }
  return left;
}

void add_use(std::vector<UsedInterface>& uses, const NodeRecord& node, const SocketChoice& choice, int rank,
             bool for_bootstrap) {
  auto known = std::find_if(uses.begin(), uses.end(), [&](const UsedInterface& use) {
    return use.node == &node && use.choice.interface == choice.interface && use.choice.address == choice.address;
  });
  if (known == uses.end()) {
    uses.push_back({.node = &node, .choice = choice, .for_bootstrap = false});
    known = std::prev(uses.end());
  }
  known->ranks.push_back(rank);
  known->for_bootstrap = known->for_bootstrap || for_bootstrap;
}

}  // namespace

std::vector<SocketChoice> predict_socket_interfaces(const std::vector<InterfaceFacts>& interfaces,
                                                    const Variables& variables) {
  const auto all = in_kernel_order(interfaces, value_of(variables, "NCCL_SOCKET_FAMILY"));
  if (const auto list = value_of(variables, "NCCL_SOCKET_IFNAME"); list.size() > 1) {
    return those(all, [list](std::string_view name) { return topology::names_interface(list, name); });
  }
  if (auto ib = those(all, [](std::string_view name) { return name.starts_with("ib"); }); !ib.empty()) return ib;
  auto others = those(all, [](std::string_view name) {
    return !name.starts_with("docker") && !name.starts_with("lo") && !name.starts_with("virbr");
  });
  for (const std::string_view last : {"docker", "lo", "virbr"}) {
    if (others.empty()) others = those(all, [last](std::string_view name) { return name.starts_with(last); });
  }
  return others;
}

std::vector<UsedInterface> used_by_nccl(const JobFacts& job) {
  std::vector<UsedInterface> uses;
  for (const RankFacts& rank : job.ranks) {
    const NodeRecord& node = job.node_of(rank);
    const auto choices = predict_socket_interfaces(node.facts.interfaces, rank.environment);
    const bool rdma = takes_rdma(node, rank);
    for (std::size_t i = 0; i < choices.size() && !(rdma && i > 0); ++i) {  // over RDMA, only the bootstrap needs one
      add_use(uses, node, choices[i], rank.rank, i == 0);
    }
  }
  return uses;
}

std::vector<UsedInterface> used_by_libddp(const JobFacts& job) {
  std::vector<std::vector<topology::CandidateAddress>> candidates;
  for (const NodeRecord& node : job.nodes) {
    if (node.facts.candidate_facts.empty()) return {};
    candidates.push_back(node.facts.candidate_facts);
  }
  const auto agreement = topology::agree(candidates);
  std::vector<UsedInterface> uses;
  for (const NodeRecord& node : job.nodes) {
    const std::size_t picked = topology::pick(node.facts.candidate_facts, agreement);
    const auto interface =
        std::find_if(node.facts.interfaces.begin(), node.facts.interfaces.end(),
                     [&](const InterfaceFacts& each) { return each.name == node.facts.candidates[picked]; });
    if (interface == node.facts.interfaces.end()) continue;
    const SocketChoice choice{.interface = &*interface, .address = node.facts.candidate_facts[picked].address};
    for (const int rank : node.ranks) add_use(uses, node, choice, rank, true);
  }
  return uses;
}

bool is_local_only(const SocketChoice& choice) {
  const InterfaceKind kind = choice.interface->kind;
  return kind == InterfaceKind::loopback || kind == InterfaceKind::host_only || is_ipv6_link_local(choice.address) ||
         choice.address.address.starts_with("169.254.");
}

std::vector<bool> nodes_at_fault(const std::vector<NodePair>& pairs, std::size_t num_nodes) {
  std::vector<int> tried(num_nodes);
  std::vector<int> failed(num_nodes);
  for (const NodePair& pair : pairs) {
    for (const int node : {pair.from, pair.to}) {
      ++tried[static_cast<std::size_t>(node)];
      failed[static_cast<std::size_t>(node)] += pair.failed ? 1 : 0;
    }
  }
  std::vector<bool> at_fault(num_nodes);
  for (std::size_t node = 0; node < num_nodes; ++node) {
    at_fault[node] = tried[node] > 0 && failed[node] == tried[node];
  }
  return at_fault;
}

int number_of(const JobFacts& job, const NodeRecord& node) { return static_cast<int>(&node - job.nodes.data()); }

Reachability reachability(const JobFacts& job, const NodeRecord& node, const std::string& address) {
  Reachability seen;
  for (const NodeRecord& other : job.nodes) {
    for (const ProbeResult& result : other.probes.results) {
      if (result.to_node != number_of(job, node) || result.address != address) continue;
      seen.tried.push_back(&other);
      if (result.end == ProbeEnd::reached) continue;
      seen.failed.push_back(&other);
      seen.worst = std::max(seen.worst, result.end);
    }
  }
  return seen;
}

namespace {

constexpr std::string_view kMappedIpv4 = "0000:0000:0000:0000:0000:ffff:";
constexpr std::string_view kMappedMulticast = "ff0e:0000:0000:0000:0000:ffff:";
constexpr std::string_view kLinkLocal = "fe80:0000:0000:0000:";

using GidBytes = std::array<std::uint8_t, 16>;

bool is_ipv4(const std::string& gid) { return gid.starts_with(kMappedIpv4) || gid.starts_with(kMappedMulticast); }

GidBytes bytes_of(const std::string& gid) {
  GidBytes bytes{};
  ::inet_pton(AF_INET6, gid.c_str(), bytes.data());
  return bytes;
}

/// An entry of NCCL_IB_ADDR_RANGE, "10.1.0.0/16". Anything else is ignored.
class AddressRange {
 public:
  AddressRange(const std::string& text, bool ipv6) {
    const auto slash = text.find('/');
    if (slash == std::string::npos) return;
    const std::size_t begin = ipv6 ? 0 : 12;
    int bits = 0;
    std::from_chars(text.data() + slash + 1, text.data() + text.size(), bits);
    if (::inet_pton(ipv6 ? AF_INET6 : AF_INET, text.substr(0, slash).c_str(), base_.data() + begin) != 1) return;
    if (bits > (ipv6 ? 128 : 32)) return;
    first_bit_ = 8 * begin;
    end_bit_ = first_bit_ + static_cast<std::size_t>(std::max(bits, 0));
  }
  bool has(const std::string& gid) const {
    const GidBytes bytes = bytes_of(gid);
    for (std::size_t bit = first_bit_; bit < end_bit_; ++bit) {
      if ((((bytes[bit / 8] ^ base_[bit / 8]) >> (7 - bit % 8)) & 1) != 0) return false;
    }
    return true;
  }

 private:
  GidBytes base_{};
  std::size_t first_bit_ = 0;
  std::size_t end_bit_ = 0;
};

int roce_version(const std::string& type) {
  if (type.starts_with("RoCE v2")) return 2;
  return type.starts_with("IB/RoCE v1") || type.starts_with("RoCE v1") ? 1 : 0;
}

bool is_valid(const std::string& gid) { return !gid.empty() && !gid.starts_with(kLinkLocal); }

/// "0000:...:ffff:0a01:0002" as "10.1.0.2"; others unchanged.
std::string address_of(const std::string& gid) {
  const GidBytes bytes = bytes_of(gid);
  if (!gid.starts_with(kMappedIpv4)) return gid;
  return fmt::format("{}.{}.{}.{}", bytes[12], bytes[13], bytes[14], bytes[15]);
}

}  // namespace

bool is_active(const RdmaPortFacts& port) { return port.state == "ACTIVE"; }

std::vector<const RdmaPortFacts*> taken_by_nccl(const NodeRecord& node, const RankFacts& rank) {
  const std::string wanted = rank.variable("NCCL_IB_HCA");
  std::vector<const RdmaPortFacts*> taken;
  for (const RdmaPortFacts& port : node.facts.rdma) {
    if (is_active(port) && topology::names_rdma_port(wanted, port.device, port.port)) taken.push_back(&port);
  }
  return taken;
}

bool rdma_is_disabled(const RankFacts& rank) {
  return std::strtoll(rank.variable("NCCL_IB_DISABLE").c_str(), nullptr, 0) != 0;
}

bool is_usable(const GidFacts& gid, bool ipv6) {
  if (gid.type != "RoCE v2" || gid.gid.starts_with("fe80")) return false;
  const bool mapped = gid.gid.starts_with(kMappedIpv4);
  if (ipv6) return !mapped;
  return mapped && !gid.gid.substr(kMappedIpv4.size()).starts_with("a9fe");  // 169.254.0.0/16
}

long long wanted_gid(const RankFacts& rank) {
  const std::string text = rank.variable("NCCL_IB_GID_INDEX");
  return text.empty() ? -1 : std::strtoll(text.c_str(), nullptr, 0);
}

const GidFacts* row_at(const RdmaPortFacts& port, long long index) {
  const auto row =
      std::find_if(port.gids.begin(), port.gids.end(), [&](const GidFacts& gid) { return gid.index == index; });
  return row == port.gids.end() ? nullptr : &*row;
}

std::optional<int> predict_gid(const RdmaPortFacts& port, const RankFacts& rank, const std::string& version) {
  if (const long long wanted = wanted_gid(rank); wanted >= 0) {
    if (port.gids_cut && wanted > port.gids.back().index) return std::nullopt;
    return static_cast<int>(wanted);
  }
  if (port.gids_cut) return std::nullopt;
  if (!version.empty() && Version::of(version) < kChoosesGid) return 0;
  const bool ipv6 = rank.variable("NCCL_IB_ADDR_FAMILY") == "AF_INET6";
  const std::string number = rank.variable("NCCL_IB_ROCE_VERSION_NUM");
  const long long wanted_version = number.empty() ? 2 : std::strtoll(number.c_str(), nullptr, 0);
  const AddressRange range{rank.variable("NCCL_IB_ADDR_RANGE"), ipv6};
  int taken = 0;
  GidFacts current = row_at(port, 0) == nullptr ? GidFacts{} : *row_at(port, 0);
  for (const GidFacts& gid : port.gids) {
    if (gid.index == 0 || is_ipv4(gid.gid) == ipv6 || !range.has(gid.gid)) continue;
    const bool other_family = is_ipv4(current.gid) == ipv6;
    const bool better = roce_version(gid.type) == wanted_version &&
                        (roce_version(current.type) != wanted_version || !is_valid(current.gid));
    if (!other_family && (!is_valid(gid.gid) || !better)) continue;
    taken = gid.index;
    current = gid;
  }
  return taken;
}

std::string network_of(const JobFacts& job, const RankFacts& rank, const RdmaPortFacts& port) {
  if (port.link_layer == "InfiniBand") return port.subnet;
  const auto index = port.gids_known ? predict_gid(port, rank, job.nccl_version(rank.rank)) : std::nullopt;
  const GidFacts* row = index ? row_at(port, *index) : nullptr;
  if (row == nullptr) return {};
  const NodeFacts& node = job.node_of(rank).facts;
  for (const InterfaceFacts& interface : node.interfaces) {
    for (const InterfaceAddress& address : interface.addresses) {
      if (address.address != address_of(row->gid)) continue;
      const bool leads_on =
          std::find(node.gateways.begin(), node.gateways.end(), interface.name) != node.gateways.end();
      const auto subnet = topology::Subnet::of(address);
      return leads_on || !subnet ? std::string{} : subnet->to_string();
    }
  }
  return {};
}

std::vector<std::string> names_in_list(std::string_view list) {
  while (!list.empty() && (list.front() == '^' || list.front() == '=')) list.remove_prefix(1);
  std::vector<std::string> names;
  while (!list.empty()) {
    const std::string_view entry = list.substr(0, list.find(','));
    list.remove_prefix(std::min(entry.size() + 1, list.size()));
    if (const auto name = entry.substr(0, entry.find(':')); !name.empty()) names.emplace_back(name);
  }
  return names;
}

std::string missing_adapter(const NodeRecord& node, const RankFacts& rank) {
  const std::string wanted = rank.variable("NCCL_IB_HCA");
  const bool exact = wanted.starts_with('=') || wanted.starts_with("^=");
  const auto& ports = node.facts.rdma;
  if (ports.empty()) return {};  // a node of another kind, where NCCL uses sockets
  for (const std::string& name : names_in_list(wanted)) {
    const auto named = [&](const RdmaPortFacts& port) {
      return exact ? port.device == name : port.device.starts_with(name);
    };
    const auto found = std::find_if(ports.begin(), ports.end(), named);
    if (found == ports.end()) return fmt::format("there is no {}", name);
    const bool active = std::any_of(ports.begin(), ports.end(),
                                    [&](const RdmaPortFacts& port) { return named(port) && is_active(port); });
    if (!wanted.starts_with('^') && !active) return fmt::format("{} is {}", name, found->state);
  }
  return {};
}

bool misses_adapter(const JobFacts& job) {
  return std::any_of(job.ranks.begin(), job.ranks.end(),
                     [&](const RankFacts& rank) { return !missing_adapter(job.node_of(rank), rank).empty(); });
}

bool network_is_socket(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name == "socket";
}

bool takes_rdma(const NodeRecord& node, const RankFacts& rank) {
  return rank.verbs_problem.empty() && !rdma_is_disabled(rank) && !network_is_socket(rank.variable("NCCL_NET")) &&
         !taken_by_nccl(node, rank).empty();
}

}  // namespace ddp::tools::doctor
