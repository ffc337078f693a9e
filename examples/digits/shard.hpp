// Which samples of a global batch are a rank's own.
#pragma once

#include <cstddef>
#include <span>

namespace digits {

/// The part of @p batch that belongs to @p rank of @p world_size: contiguous, in rank order, together the whole batch.
/// Sizes differ by at most one, the larger ones first; when the batch has fewer samples than there are ranks, the last
/// ranks get none and take part in the step all the same.
///
/// Averaging and uneven parts: Reducer divides the sum of the ranks' gradients by world_size. For the mean over the
/// whole batch each rank must therefore scale the gradient of its *summed* loss by world_size / batch.size(). Scaling
/// by the size of its own part would weigh the samples of small parts too much (and divide by zero for an empty one).
///
/// Throws ddp::Error(invalid_argument) unless 0 <= rank < world_size.
std::span<const std::size_t> shard_of(std::span<const std::size_t> batch, int rank, int world_size);

}  // namespace digits
