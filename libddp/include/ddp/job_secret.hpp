// A secret that the ranks of a job share and other processes do not know.
#pragma once

#include <ddp/bytes.hpp>

namespace ddp {

class World;

/// 32 random bytes that the ranks of @p world know, as do all clients of the launcher's key-value store; empty in a
/// world of one rank. For sealed_store() over stores that others may use. The first call reads them, and throws what
/// World::key_value_store() and its get() throw; a World that left its session has read them already. Thread-safety:
/// like calls of the World's store.
Bytes job_secret(World& world);

}  // namespace ddp
