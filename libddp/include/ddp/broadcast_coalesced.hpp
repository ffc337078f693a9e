// Broadcasts many tensors in few messages: parameters, and the buffers of a model (running means, counters).
#pragma once

#include <optional>
#include <span>

#include <ddp/process_group.hpp>
#include <ddp/tensor_view.hpp>

namespace ddp {

/// Copies @p root's values to all ranks. Tensors of any types are packed into messages of about 25 MiB; larger tensors
/// are sent without a copy. Two messages are under way at a time. CUDA tensors start as one operation, which the call
/// waits for. Collective, with tensors of the same sizes in the same order on all ranks. Throws Error.
/// @param stream the stream that fills CUDA tensors; default: the device's default stream.
void broadcast_coalesced(ProcessGroup& group, std::span<const TensorView> tensors, int root = 0,
                         std::optional<Stream> stream = {});

/// The highest rank of the group whose @p active is true, on all ranks: its buffers count when some ranks have run out
/// of inputs. Collective. Throws Error(invalid_argument), on all ranks, if no rank is active.
int highest_active_rank(ProcessGroup& group, bool active);

}  // namespace ddp
