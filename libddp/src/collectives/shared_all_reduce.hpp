// all_reduce for callers within libddp that may release the memory while the operation runs.
#pragma once

#include <memory>
#include <optional>

#include <ddp/process_group.hpp>

namespace ddp::collectives {

/// ProcessGroup::all_reduce, with a share in what owns the tensor's memory; null: the caller keeps it.
Work shared_all_reduce(ProcessGroup& group, const TensorView& tensor, ReduceOp op, std::optional<Deadline> deadline,
                       std::shared_ptr<const void> owner);

}  // namespace ddp::collectives
