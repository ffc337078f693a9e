// The calls of a process group: an Operation is made of their arguments, after checking all that can be checked without
// the other ranks. Others of libddp exchange bytes by them.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include <ddp/bytes.hpp>
#include <ddp/process_group.hpp>

namespace ddp::collectives {

/// Collective. The bytes of each rank, in rank order: one all_gather of the sizes, then one of the bytes.
std::vector<Bytes> all_gather_bytes(ProcessGroup& group, std::span<const std::byte> own,
                                    std::optional<Deadline> deadline = {});

}  // namespace ddp::collectives
