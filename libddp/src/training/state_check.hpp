// Compares the ranks' tensors before one rank's are brought to all.
#pragma once

#include <span>
#include <string>

#include <ddp/broadcast_state.hpp>

namespace ddp::training {

/// Collective. Throws Error(mismatch), the same on every rank, with the first of the tensors whose name, shape or type
/// differs; or when @p call does.
void verify_state(ProcessGroup& group, std::span<const NamedTensor> tensors, const std::string& call);

}  // namespace ddp::training
