// The outline of a CBOR item (RFC 8949), judged before it is read: the reader recurses, and stores each value at some
// sixteen times its size, so what a peer sends must not decide how deep and how much.
#pragma once

#include <cstddef>
#include <span>

namespace ddp::launcher::control {

/// Maps and arrays inside each other. Messages need four.
inline constexpr std::size_t kMaxCborDepth = 8;
/// Values and keys of one item: a fence that names some million ranks.
inline constexpr std::size_t kMaxCborItems = std::size_t{4} << 20U;

/// What is wrong with @p bytes as one CBOR item; nullptr if nothing. Items of indefinite length and tags, which
/// encode() does not make, are refused; so are numbers below -2^63. Values and keys are not looked at otherwise.
const char* flaw_of_cbor(std::span<const std::byte> bytes) noexcept;

}  // namespace ddp::launcher::control
