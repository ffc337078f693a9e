// Which RDMA ports NCCL will take, predicted as its net_ib.cc chooses them.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "doctor/facts.hpp"
#include "doctor/software_version.hpp"

namespace ddp::tools::doctor {

bool is_active(const RdmaPortFacts& port);

/// Active ports that NCCL_IB_HCA allows; points into @p node.
std::vector<const RdmaPortFacts*> taken_by_nccl(const NodeRecord& node, const RankFacts& rank);

/// NCCL_IB_DISABLE as NCCL reads it: "true" is 0.
bool rdma_is_disabled(const RankFacts& rank);

/// Whether packets to a RoCE port's address pass routers and NCCL would choose it by itself: RoCE v2, of the given
/// family, and not link-local.
bool is_usable(const GidFacts& gid, bool ipv6);

/// From this version on NCCL chooses a RoCE port's address; before, it took row 0 unless told otherwise.
inline constexpr Version kChoosesGid{.major = 2, .minor = 21, .patch = 0};

/// The row of a RoCE port's table of addresses that NCCL takes, as its net_ib/connect.cc chooses it
/// (ncclIbGetGidIndex). Nothing where that may be one of those that were left out. @param version of NCCL; empty if
/// unknown
std::optional<int> predict_gid(const RdmaPortFacts& port, const RankFacts& rank, const std::string& version);
/// The row of that index; null if it is empty, or left out.
const GidFacts* row_at(const RdmaPortFacts& port, long long index);
/// NCCL_IB_GID_INDEX as NCCL reads it; -1: it chooses.
long long wanted_gid(const RankFacts& rank);

/// The network in which a port is, if it does not lead on to others: a subnet without a gateway, or an InfiniBand
/// subnet. Empty: unknown.
std::string network_of(const JobFacts& job, const RankFacts& rank, const RdmaPortFacts& port);

/// NCCL_IB_HCA's names, without the signs before them and the ports.
std::vector<std::string> names_in_list(std::string_view list);
/// What is wrong with a name in the rank's NCCL_IB_HCA; empty: each is an active adapter.
std::string missing_adapter(const NodeRecord& node, const RankFacts& rank);
/// The same of any rank.
bool misses_adapter(const JobFacts& job);

/// @param name of a network, as in NCCL_NET
bool network_is_socket(std::string name);

/// Whether the rank's data goes over RDMA.
bool takes_rdma(const NodeRecord& node, const RankFacts& rank);

}  // namespace ddp::tools::doctor
