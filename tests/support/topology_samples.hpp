// Samples of the topology's types that have a codec of their own, for check_message().
#pragma once

#include "topology/network/message_values.hpp"

namespace ddp {

inline void fill_sample(CpuSet& cpus) { cpus = CpuSet::parse("0-3,8"); }

}  // namespace ddp

namespace ddp::topology {

inline void fill_sample(CandidateAddress& candidate) {
  candidate = {.address = {.address = "2001:db8::7", .prefix_length = 64, .ipv6 = true},
               .fabric = true,
               .routes_to_peers = true,
               .rate_mbps = 400'000};
}

}  // namespace ddp::topology
