// A key-value store over another one that strangers may read and write.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include <ddp/bytes.hpp>
#include <ddp/key_value_store.hpp>

namespace ddp {

/// The store with every value sealed by a secret of the ranks (libsodium's XChaCha20-Poly1305). A value is bound to its
/// rank, its key and the store's purpose: a process without the secret can neither read it, nor change it, nor forge
/// one, nor move it to another key. It can remove values, disturb fences, and put back older values of the same
/// purpose. get() throws Error(protocol) for a value that is not sealed this way.
/// @param secret of any length, such as job_secret(); equal on all ranks
/// @param purpose equal on all ranks, and used by this store only
/// Throws Error: invalid_argument (an empty secret), unavailable (libsodium cannot be initialised).
std::unique_ptr<KeyValueStore> sealed_store(std::unique_ptr<KeyValueStore> store, std::span<const std::byte> secret,
                                            std::string purpose);

}  // namespace ddp
