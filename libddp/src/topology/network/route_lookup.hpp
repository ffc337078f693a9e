// From which address of this host packets to other hosts leave.
#pragma once

#include <string>
#include <vector>

namespace ddp::topology {

struct Route {
  std::string source;  ///< numeric address of this host
  std::string reason;  ///< "it routes to n1"
};

/// For the first hosts of @p hosts that can be resolved, then for the default route; the best evidence first. Asks the
/// resolver and the routing table; sends nothing to the hosts. A resolver that does not answer within seconds is
/// abandoned with its thread (getaddrinfo(3) has no deadline); then nothing is found.
std::vector<Route> find_routes(const std::vector<std::string>& hosts);

}  // namespace ddp::topology
