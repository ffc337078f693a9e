// What the ranks of a job know and other processes do not.
#pragma once

#include <ddp/bytes.hpp>

namespace ddp {

class World;

/// 32 random bytes that the ranks of @p world know, as do all clients of the launcher's key-value store; empty in a
/// world of one. For sealed_store() over stores that others may use. The first call reads them, and throws what
/// World::key_value_store() and its get() throw; a World whose session was left has read them. Thread-safety: as calls
/// of the World's store.
Bytes job_secret(World& world);

}  // namespace ddp
