// What each rank does for itself, and what has failed for all when it has failed for one.
#pragma once

#include <functional>
#include <vector>

#include <ddp/bytes.hpp>
#include <ddp/deadline.hpp>
#include <ddp/process_group.hpp>

namespace ddp::training {

/// Collective. Runs @p action, and gives what each rank's has returned, in rank order. If any has thrown, all ranks
/// throw the first rank's Error, with the ranks whose actions have failed, by @p deadline.
std::vector<Bytes> act_jointly(ProcessGroup& group, Deadline deadline, const std::function<Bytes()>& action);

}  // namespace ddp::training
