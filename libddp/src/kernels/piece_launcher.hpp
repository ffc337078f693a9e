// Launches kernels that take many tensors at once: as many as fit into the parameters of each launch.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/executor.hpp"

namespace ddp::kernels {

/// @tparam Arguments a kernel's struct, with count, first_chunk and pieces as in PieceArguments.
template <class Arguments>
class PieceLauncher {
 public:
  /// @param chunk elements of a block.
  PieceLauncher(Executor& executor, Kernel kernel, std::uint32_t chunk)
      : executor_(executor), kernel_(kernel), chunk_(chunk) {}

  /// A tensor of so many elements. @param put(arguments, piece, first) notes where it is, from element first on: long
  /// ones become several pieces, since counts have 32 bits, and so have the numbers of blocks.
  template <class Put>
  void add(std::size_t count, const Put& put) {
    const std::size_t longest = std::size_t{1} << 31U;
    for (std::size_t done = 0; done < count;) {
      const std::size_t length = std::min(count - done, longest);
      const auto chunks = static_cast<std::uint32_t>((length + chunk_ - 1) / chunk_);
      if (arguments_.pieces == kMost || chunks > kMaxBlocks - blocks_) launch();
      const std::uint32_t piece = arguments_.pieces++;
      put(arguments_, piece, done);
      arguments_.count[piece] = static_cast<std::uint32_t>(length);
      arguments_.first_chunk[piece] = blocks_;
      blocks_ += chunks;
      done += length;
    }
  }

  /// What was added and not yet launched.
  void launch() {
    if (arguments_.pieces == 0) return;
    executor_.launch({.kernel = kernel_, .blocks = blocks_, .argument = &arguments_});
    arguments_.pieces = 0;
    blocks_ = 0;
  }

  Arguments& arguments() { return arguments_; }

 private:
  static constexpr std::uint32_t kMost = std::extent_v<decltype(Arguments::count)>;
  static constexpr std::uint32_t kMaxBlocks =
      0x7fffffff;  // of a grid (CUDA C++ Programming Guide, compute capabilities)

  Executor& executor_;
  Kernel kernel_;
  std::uint32_t chunk_;
  std::uint32_t blocks_ = 0;
  Arguments arguments_{};
};

}  // namespace ddp::kernels
