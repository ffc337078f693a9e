// Which RDMA adapters NCCL will take for each GPU, predicted as its net_ib and graph/topo.cc choose them (2.28
// to 2.30).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "doctor/facts.hpp"

namespace ddp::tools::doctor {

/// Ports that NCCL uses as one, or a single one; points into the node.
struct NetDevice {
  std::vector<const RdmaPortFacts*> ports;
  std::string name() const;  ///< "mlx5_0+mlx5_1"
};

/// What NCCL has of the node: active ports that NCCL_IB_HCA allows, by PCI address, those of one adapter merged
/// (NCCL_IB_MERGE_NICS, NCCL_NET_MERGE_LEVEL). Empty where it does not take RDMA.
std::vector<NetDevice> net_devices(const NodeRecord& node, const RankFacts& rank);

/// The GPU that a rank uses, as programs choose that know their local rank only; points into the node. Nothing where
/// that, or its place, is unknown.
const GpuFacts* own_gpu(const JobFacts& job, const RankFacts& rank);

/// How near a port is to a GPU in NCCL's words, smaller is nearer: PIX, PXB, PHB (also NODE), SYS.
enum class Nearness { pix, pxb, phb, sys, unknown };
Nearness nearness(const NodeRecord& node, const GpuFacts& gpu, const RdmaPortFacts& port);
std::string_view to_string(Nearness nearness) noexcept;

/// Of net_devices(), those that NCCL takes for the rank's GPU: of the nearest ones, as many as there are for each GPU
/// that is as near (NCCL_NETDEVS_POLICY), from one on that depends on the GPU's number. Nothing where it cannot be
/// told: GPU or places unknown, a plugin for another network, or adapters of several speeds, among which NCCL weighs
/// PCIe's.
std::optional<std::vector<NetDevice>> predict_adapters(const JobFacts& job, const RankFacts& rank);

}  // namespace ddp::tools::doctor
