// Finds addresses for the job's store to listen at, and the one at which this node reaches it, before workers depend on
// it.
#pragma once

#include <string>
#include <vector>

#include <ddp/deadline.hpp>

namespace ddp::launcher {

/// The first of @p addresses (numeric, best first) that accepts a connection at @p port. Throws Error(unavailable) that
/// lists the result for each: no answer usually means a firewall.
std::string reachable_store(const std::vector<std::string>& addresses, int port, Deadline deadline);

/// Those of @p addresses (numeric) that this host has, in order; 127.0.0.1 if none. --local-addr may name a gateway's
/// address, at which only other hosts reach this one.
std::vector<std::string> own_among(const std::vector<std::string>& addresses);

}  // namespace ddp::launcher
