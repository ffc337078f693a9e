// Collectives on bytes whose number may differ from rank to rank: texts, settings, serialized objects.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include <ddp/bytes.hpp>
#include <ddp/deadline.hpp>
#include <ddp/process_group.hpp>

namespace ddp {

// Each exchanges the sizes first, then the bytes, if there are any. All are collective and block until the calling rank
// has its result, at most until the deadline (default: the group's timeout for each exchange). They throw Error:
// invalid_argument for a root outside the group, and the errors of the group's operations. The caller owns the results.
// A text's bytes are std::as_bytes(std::span{text}). The bytes are not checked: validate what other ranks send before
// you use it.

/// @p root's bytes, on all ranks. Those of other ranks are ignored.
Bytes broadcast_object(ProcessGroup& group, std::span<const std::byte> object, int root = 0,
                       std::optional<Deadline> deadline = {});

/// All ranks' bytes, in rank order, on all ranks.
std::vector<Bytes> all_gather_object(ProcessGroup& group, std::span<const std::byte> object,
                                     std::optional<Deadline> deadline = {});

/// All ranks' bytes, in rank order, on @p root; an empty vector on the others.
std::vector<Bytes> gather_object(ProcessGroup& group, std::span<const std::byte> object, int root = 0,
                                 std::optional<Deadline> deadline = {});

/// Rank i gets @p root's objects[i]. Those of other ranks are ignored. Throws invalid_argument, on all ranks, unless
/// root passes one for each rank.
Bytes scatter_object(ProcessGroup& group, std::span<const Bytes> objects, int root = 0,
                     std::optional<Deadline> deadline = {});

}  // namespace ddp
