// What all key-value stores promise: keys, values, errors.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <ddp/deadline.hpp>
#include <ddp/error.hpp>

namespace ddp::kvs {

// The parts of the KeyValueStore contract that are the same for every store: argument checks and the fence time-out.

/// Throws Error(invalid_argument) unless 0 <= rank < world_size.
void check_rank(int rank, int world_size);

/// Throws Error(unavailable) when the store has been closed or a fence of it has failed.
void check_usable(bool usable, const std::string& attempted);

/// The error of a get() whose key the rank has not put. @p native: the transport's own code, if it has one.
Error key_not_found(const std::string& attempted, std::string native = {});

/// When a fence that must end by @p deadline stops waiting and looks for absent ranks: it reserves a quarter of the
/// remaining time, at most two seconds.
Deadline before_reserve(Deadline deadline);

/// The error of a fence that @p absent ranks did not reach.
Error fence_timeout(const std::string& attempted, std::vector<int> absent, int world_size);

// The one rule about the names of values that all key-value stores share.

inline constexpr std::size_t kMaxKeyBytes = 64;

/// Throws Error(invalid_argument) unless @p key has 1 to 64 bytes of [A-Za-z0-9._-]: what PMIx, PMI-2 and a TCPStore
/// all can carry without escaping.
void check_key(std::string_view key);

}  // namespace ddp::kvs
