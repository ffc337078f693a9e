// Exchange of bytes of any length among the ranks of a group.
#pragma once

#include <optional>
#include <vector>

#include <ddp/bytes.hpp>
#include <ddp/process_group.hpp>

namespace ddp::collectives {

/// Collective. The bytes of each rank, in rank order: one all_gather of the sizes, then one of the bytes.
std::vector<Bytes> all_gather_bytes(ProcessGroup& group, std::span<const std::byte> own,
                                    std::optional<Deadline> deadline = {});

}  // namespace ddp::collectives
