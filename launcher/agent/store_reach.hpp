// Finds the address at which this node reaches the job's store, before workers would wait for it in vain.
#pragma once

#include <string>
#include <vector>

#include <ddp/deadline.hpp>

namespace ddp::launcher {

/// The first of @p addresses (numeric, best first) that accepts a connection at @p port. Throws Error(unavailable) that
/// lists what happened at each: no answer usually is a firewall.
std::string reachable_store(const std::vector<std::string>& addresses, int port, Deadline deadline);

}  // namespace ddp::launcher
