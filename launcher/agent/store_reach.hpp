// Finds the addresses at which the job's store listens and at which this node reaches it, before workers would wait for
// it in vain.
#pragma once

#include <string>
#include <vector>

#include <ddp/deadline.hpp>

namespace ddp::launcher {

/// The first of @p addresses (numeric, best first) that accepts a connection at @p port. Throws Error(unavailable) that
/// lists what happened at each: no answer usually is a firewall.
std::string reachable_store(const std::vector<std::string>& addresses, int port, Deadline deadline);

/// Those of @p addresses (numeric) that this host has, in their order; 127.0.0.1 if it has none. What --local-addr
/// names may be an address of the gateway, at which only others reach this host, or one of a network that it does not
/// use.
std::vector<std::string> own_among(const std::vector<std::string>& addresses);

}  // namespace ddp::launcher
