// A rank's environment as the bytes that it sends to rank 0.
#pragma once

#include <cstddef>
#include <span>

#include <ddp/bytes.hpp>

#include "diagnostics/environment/rank_environment.hpp"

namespace ddp::diagnostics {

/// A fence carries every message to every node, so they have a limit. Typical ones have 3 to 6 KiB.
inline constexpr std::size_t kLargestMessageBytes = std::size_t{128} * 1024;

/// One that would be too large goes without the variables that have nothing to do with training, then without any.
Bytes encode(const RankEnvironment& environment);

/// Throws Error(protocol) for bytes that are no message of this version.
RankEnvironment decode_rank_environment(std::span<const std::byte> bytes);

}  // namespace ddp::diagnostics
