// Network interfaces that the user names in the environment, and the error that lists the existing ones.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ddp/devices.hpp>
#include <ddp/error.hpp>

#include "base/env_table.hpp"

namespace ddp::topology {

/// ddprun tells its ranks what it chose and why: "eth0: its subnet 10.1.0.0/16 is on all 2 nodes". They get its choice
/// in GLOO_SOCKET_IFNAME, which alone would look as if the user had made it.
inline constexpr const char* kInterfaceReasonVariable = "DDPRUN_INTERFACE";

struct UserInterfaces {
  std::string reason;  ///< "DDP_SOCKET_IFNAME=eth0 names it"; where a launcher set the variable, its own reason
  std::vector<std::string> names{};  ///< in the kernel's order; never empty
};

/// What the first of DDP_SOCKET_IFNAME, GLOO_SOCKET_IFNAME (exact names, separated by commas) and NCCL_SOCKET_IFNAME
/// (NCCL's syntax) that is set leaves of the interfaces that have an address; nothing if none is set. Throws
/// Error(invalid_argument) with the host's name and its interfaces when that is nothing.
std::optional<UserInterfaces> interfaces_named_by_user(const base::Environment& environment,
                                                       const std::vector<NetworkInterface>& interfaces);

/// What is to be said before a job on several hosts starts over the interface @p chosen, which the user has named, when
/// it reaches this host only; empty: nothing.
std::string local_interface_warning(const base::Environment& environment,
                                    const std::vector<NetworkInterface>& interfaces, std::string_view chosen);

/// Throws an Error about choosing an interface that ends with the host's interfaces and their addresses.
/// @param advice ends with "; " or is empty.
[[noreturn]] void refuse_interfaces(ErrorCode code, const std::vector<NetworkInterface>& interfaces, std::string cause,
                                    const std::string& advice);

/// "eth0 (10.1.0.7)".
std::string describe(const NetworkInterface& interface);

// How NCCL reads NCCL_SOCKET_IFNAME and NCCL_IB_HCA (misc/utils.cc, parseStringList and matchIfList), to obey a user's
// value or report it as wrong before NCCL sees it.

/// Whether NCCL_SOCKET_IFNAME=@p list lets NCCL use the interface @p name. A list is "[^][=]name[:port],...": names are
/// prefixes unless '=' comes first; '^' makes it a list of exclusions. Only the first 16
/// names count. NCCL ignores a list of fewer than two characters: everything matches.
bool names_interface(std::string_view list, std::string_view name);

/// Whether NCCL_IB_HCA=@p list lets NCCL use port @p port of the RDMA device @p device. The same notation, with ports;
/// a name without a port stands for all ports of the device. Only the first 32 names count; an empty list matches
/// everything. @param port -1: any.
bool names_rdma_port(std::string_view list, std::string_view device, int port);

}  // namespace ddp::topology
