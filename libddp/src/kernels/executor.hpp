// Where kernels run. The functions of copies.hpp and compression.hpp say what to launch; they are the same
// for processors and devices.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

namespace ddp::kernels {

// ---- All kernels by name, with what runs them on processors. The names are those of the device code's functions.

enum class Kernel : std::uint8_t {
  copy_f32_f32,
  copy_f32_f16,
  copy_f16_f32,
  copy_f32_bf16,
  copy_bf16_f32,
  copy_f32_e4m3,
  copy_e4m3_f32,
  copy_f32_e5m2,
  copy_e5m2_f32,
  copy_f16_f16,
  copy_bf16_bf16,
  copy_f64_f64,
  copy_raw,
  fill_1,
  fill_2,
  fill_4,
  fill_8,
  range,
  quantize,
  dequantize,
  selection_histogram,
  selection_count,
  selection_gather,
  scatter_add,
  scatter_zero,
  add,
  copy_finite,
  low_rank_left,
  low_rank_right,
  low_rank_expand,
  begin_factors,
  orthogonalize,
  check_finite,
  exact_add_f32,
  exact_add_f64,
  exact_add_f16,
  exact_add_bf16,
  exact_mean_f32,
  exact_mean_f64,
  exact_mean_f16,
  exact_mean_bf16,
};
inline constexpr std::size_t kKernels = 41;

struct KernelEntry {
  const char* name;                   ///< "ddp_copy_f32_f16"
  void (*run)(const void* argument);  ///< on this processor, to the end, whatever the launch's grid would be
  std::size_t argument_bytes;
};

/// By Kernel.
std::span<const KernelEntry, kKernels> kernel_table() noexcept;

struct Launch {
  Kernel kernel;
  std::uint32_t blocks;  ///< at least 1, each of kThreads threads
  const void* argument;  ///< the kernel's struct; read before launch() returns
};

class Executor {
 public:
  Executor() = default;
  Executor& operator=(Executor&&) = delete;
  virtual ~Executor() = default;

  /// Runs the kernel, or queues it behind what was launched before. Throws Error where that fails.
  virtual void launch(const Launch& launch) = 0;
};

/// Runs kernels at once, on the calling thread.
class HostExecutor final : public Executor {
 public:
  void launch(const Launch& launch) override;
};

// ---- Launches kernels that take many tensors at once: as many as fit into the parameters of each launch.

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
