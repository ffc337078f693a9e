// Which part of many tensors a block works on: those that PieceLauncher has put into one launch.
#pragma once

#include "kernels/arguments.hpp"

namespace ddp::kernels {
namespace {

/// The piece that this block belongs to: the last one that begins at or before it.
template <class Arguments>
__device__ std::uint32_t piece_of_block(const Arguments& arguments) {
  std::uint32_t low = 0;
  for (std::uint32_t high = arguments.pieces; high - low > 1;) {
    const std::uint32_t middle = (low + high) / 2;
    if (arguments.first_chunk[middle] <= blockIdx.x) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

/// This block's part of a piece.
template <bool kRaw>
struct Chunk {
  std::uint32_t piece;
  std::size_t first;
  std::uint32_t count;

  template <class Arguments>
  __device__ explicit Chunk(const Arguments& arguments) : piece(piece_of_block(arguments)) {
    constexpr std::uint32_t kElements = kChunkElements<kRaw>;
    first = static_cast<std::size_t>(blockIdx.x - arguments.first_chunk[piece]) * kElements;
    const std::size_t left = arguments.count[piece] - first;
    count = left < kElements ? static_cast<std::uint32_t>(left) : kElements;
  }
};

}  // namespace
}  // namespace ddp::kernels
