// What CallOptions make of operations.
#pragma once

#include <span>
#include <string>

#include <ddp/backend.hpp>

namespace ddp::collectives {

/// Throws Error(invalid_argument) about operations that start as one.
[[noreturn]] void reject(std::span<const Operation> operations, std::string cause);

/// Streams and prescale. Throws Error(invalid_argument).
void apply(const CallOptions& options, const BackendTraits& traits, std::span<Operation> operations);

}  // namespace ddp::collectives
