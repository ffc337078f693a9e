// How NCCL reads NCCL_SOCKET_IFNAME and NCCL_IB_HCA (misc/utils.cc, parseStringList and matchIfList), to obey a user's
// value or report it as wrong before NCCL sees it.
#pragma once

#include <string_view>

namespace ddp::topology {

/// Whether NCCL_SOCKET_IFNAME=@p list lets NCCL use the interface @p name. A list is "[^][=]name[:port],...": names are
/// prefixes unless '=' comes first; '^' makes it a list of exclusions. Only the first 16
/// names count. NCCL ignores a list of fewer than two characters: everything matches.
bool names_interface(std::string_view list, std::string_view name);

/// Whether NCCL_IB_HCA=@p list lets NCCL use port @p port of the RDMA device @p device. The same notation, with ports;
/// a name without a port stands for all ports of the device. Only the first 32 names count; an empty list matches
/// everything. @param port -1: any.
bool names_rdma_port(std::string_view list, std::string_view device, int port);

}  // namespace ddp::topology
