// What this library's backends for CPUs can do: all of them the same.
#pragma once

#include <ddp/backend.hpp>

namespace ddp::collectives {

inline constexpr BackendTraits kCpuTraits{.serves_cpu = true,
                                          .serves_cuda = false,
                                          .completes_inline = true,
                                          .needs_progress = true,
                                          .stream_ordered = false,
                                          .detects_peer_death = true,
                                          .concurrent_collectives = 1};

}  // namespace ddp::collectives
