// Finds addresses for the job's store to listen at, and the one at which this node reaches it, before workers depend on
// it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ddp/deadline.hpp>

#include "store_server/store_key.hpp"
#include "store_server/witness.hpp"

namespace ddp::launcher {

struct ReachableStore {
  std::string address;
  std::unique_ptr<store_server::Witness> witness;  ///< while it lives, the store serves this node's ranks
};

/// Makes this node known to the store at the first of @p addresses (numeric, best first) at which it proves that it is
/// the job's, and checks that it serves a client of this node. Addresses that this host has, too (docker0, virbr0),
/// lead to this host and are not tried, unless it has them all. Throws Error(unavailable) that lists the result for
/// each: no answer usually means a firewall.
ReachableStore reach_store(const std::vector<std::string>& addresses, int port, const store_server::StoreKey& key,
                           Deadline deadline);

/// Those of @p addresses (numeric) that this host has, in order; 127.0.0.1 if none. --local-addr may name a gateway's
/// address, at which only other hosts reach this one.
std::vector<std::string> own_among(const std::vector<std::string>& addresses);

}  // namespace ddp::launcher
