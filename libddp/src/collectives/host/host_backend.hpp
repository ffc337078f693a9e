// The CPU backend that users get: ranks that share memory use it, the others TCP. Which do is decided by all ranks
// alike from all addresses: equal boot id, network namespace and user, and shared memory at hand at both.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <ddp/backend.hpp>

#include "collectives/shm/segment_layout.hpp"

namespace ddp::collectives::host {

/// "host".
extern const BackendPlugin kBackend;

/// Throws Error.
std::unique_ptr<Backend> create(const BackendConfig& config);

/// For tests: @p domain in place of DDP_MEMORY_DOMAIN, points at which a rank falls, and where the numbers of steps and
/// collectives begin.
std::unique_ptr<Backend> create(const BackendConfig& config, const std::string& domain, shm::PhaseHook hook = {},
                                std::uint64_t first_number = 0);

}  // namespace ddp::collectives::host
