// Compares the ranks' tensors before one rank's are brought to all.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include <ddp/broadcast_state.hpp>
#include <ddp/bytes.hpp>
#include <ddp/deadline.hpp>
#include <ddp/process_group.hpp>

namespace ddp::training {

/// Collective. Throws Error(mismatch), the same on every rank, with the first of the tensors whose name, shape or type
/// differs; or when @p call does.
void verify_state(ProcessGroup& group, std::span<const NamedTensor> tensors, const std::string& call);

// ---- What each rank does for itself, and what has failed for all when it has failed for one.

/// Collective. Runs @p action, and gives what each rank's has returned, in rank order. If any has thrown, all ranks
/// throw the first rank's Error, with the ranks whose actions have failed, by @p deadline.
std::vector<Bytes> act_jointly(ProcessGroup& group, Deadline deadline, const std::function<Bytes()>& action);

}  // namespace ddp::training
