#include "doctor/nccl_rdma.hpp"

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "topology/network/ifname_list.hpp"

namespace ddp::tools::doctor {

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
  constexpr std::string_view kMappedIpv4 = "0000:0000:0000:0000:0000:ffff:";
  if (gid.type != "RoCE v2" || gid.gid.starts_with("fe80")) return false;
  const bool mapped = gid.gid.starts_with(kMappedIpv4);
  if (ipv6) return !mapped;
  return mapped && !gid.gid.substr(kMappedIpv4.size()).starts_with("a9fe");  // 169.254.0.0/16
}

bool network_is_socket(std::string name) {
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  return name == "socket";
}

bool takes_rdma(const NodeRecord& node, const RankFacts& rank) {
  return !rdma_is_disabled(rank) && !network_is_socket(rank.variable("NCCL_NET")) && !taken_by_nccl(node, rank).empty();
}

}  // namespace ddp::tools::doctor
