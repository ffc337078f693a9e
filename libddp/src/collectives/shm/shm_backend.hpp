// The backend of ranks that share memory: ranks of one user on one host, in one network namespace.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include <ddp/backend.hpp>

#include "collectives/shm/endpoint.hpp"
#include "collectives/shm/phase_hook.hpp"

namespace ddp::collectives::shm {

/// For ranks that are known to share memory; connect throws unavailable where they do not.
std::unique_ptr<Backend> create(const BackendConfig& config);

/// The same with an endpoint that exists already: for a backend that learns only from all addresses who shares memory
/// with whom. connect then gets the packed addresses of the endpoints of this group's ranks.
std::unique_ptr<Backend> create(const BackendConfig& config, Endpoint endpoint);

/// For tests.
struct Settings {
  std::uint64_t first_step = 0;  ///< of the leader: where step numbers begin
  PhaseHook hook{};
};
std::unique_ptr<Backend> create(const BackendConfig& config, Endpoint endpoint, const Settings& settings);

}  // namespace ddp::collectives::shm
