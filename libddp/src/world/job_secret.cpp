#include <ddp/job_secret.hpp>

#include <ddp/world.hpp>

#include "world/world_state.hpp"

namespace ddp {

Bytes job_secret(World& world) { return WorldState::of(world).secret(); }

}  // namespace ddp
