// The one rule about the names of values that all key-value stores share.
#pragma once

#include <cstddef>
#include <string_view>

namespace ddp::kvs {

inline constexpr std::size_t kMaxKeyBytes = 64;

/// Throws Error(invalid_argument) unless @p key has 1 to 64 bytes of [A-Za-z0-9._-]: what PMIx, PMI-2 and a TCPStore
/// all can carry without escaping.
void check_key(std::string_view key);

}  // namespace ddp::kvs
