// Which RDMA ports NCCL will take, predicted as its net_ib.cc chooses them.
#pragma once

#include <string>
#include <vector>

#include "doctor/facts.hpp"

namespace ddp::tools::doctor {

bool is_active(const RdmaPortFacts& port);

/// Active ports that NCCL_IB_HCA allows; points into @p node.
std::vector<const RdmaPortFacts*> taken_by_nccl(const NodeRecord& node, const RankFacts& rank);

/// NCCL_IB_DISABLE as NCCL reads it: "true" is 0.
bool rdma_is_disabled(const RankFacts& rank);

/// Whether packets to a RoCE port's address pass routers and NCCL would choose it by itself: RoCE v2, of the given
/// family, and not link-local.
bool is_usable(const GidFacts& gid, bool ipv6);

/// @param name of a network, as in NCCL_NET
bool network_is_socket(std::string name);

/// Whether the rank's data goes over RDMA.
bool takes_rdma(const NodeRecord& node, const RankFacts& rank);

}  // namespace ddp::tools::doctor
