// The device kernels, compiled to one fat binary, which device_image.cpp embeds.
#include "kernels/device/exact_sums.cuh"
#include "kernels/device/low_rank.cuh"
#include "kernels/device/pieces.cuh"
#include "kernels/element.hpp"

namespace ddp::kernels {
namespace {

constexpr unsigned int kWarp = 32;
constexpr unsigned int kWarps = kThreads / kWarp;

/// Elements that one instruction loads or stores.
template <class T, unsigned int kCount>
struct alignas(sizeof(T) * kCount < 16 ? sizeof(T) * kCount : 16) Group {
  T element[kCount];
};

template <class T>
__device__ bool is_aligned(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer) % alignof(T) == 0;
}

template <class From, class To, bool kRaw, class Convert>
__device__ void copy_chunk(const PieceArguments& arguments, Convert convert) {
  constexpr unsigned int kWidth = kGroupElements<kRaw>;
  using FromGroup = Group<From, kWidth>;
  using ToGroup = Group<To, kWidth>;
  const Chunk<kRaw> chunk(arguments);
  const From* from = static_cast<const From*>(arguments.from[chunk.piece]) + chunk.first;
  To* to = static_cast<To*>(arguments.to[chunk.piece]) + chunk.first;
  const unsigned int groups = is_aligned<FromGroup>(from) && is_aligned<ToGroup>(to) ? chunk.count / kWidth : 0;

  FromGroup loaded[kGroupsPerThread];
#pragma unroll
  for (unsigned int i = 0; i < kGroupsPerThread; ++i) {
    const unsigned int group = i * kThreads + threadIdx.x;
    if (group < groups) loaded[i] = reinterpret_cast<const FromGroup*>(from)[group];
  }
#pragma unroll
  for (unsigned int i = 0; i < kGroupsPerThread; ++i) {
    const unsigned int group = i * kThreads + threadIdx.x;
    if (group < groups) {
      ToGroup result;
#pragma unroll
      for (unsigned int j = 0; j < kWidth; ++j) result.element[j] = convert(loaded[i].element[j]);
      reinterpret_cast<ToGroup*>(to)[group] = result;
    }
  }
  for (unsigned int i = groups * kWidth + threadIdx.x; i < chunk.count; i += kThreads) to[i] = convert(from[i]);
}

template <class From, class To>
__device__ void copy(const PieceArguments& arguments) {
  const auto scale = static_cast<typename From::Value>(arguments.scale);
  copy_chunk<typename From::Stored, typename To::Stored, false>(
      arguments, [scale](typename From::Stored stored) { return converted<From, To>(stored, scale); });
}

template <class Word>
__device__ void fill(const PieceArguments& arguments) {
  const Chunk<false> chunk(arguments);
  Word* to = static_cast<Word*>(arguments.to[chunk.piece]) + chunk.first;
  const Word word = static_cast<Word>(arguments.pattern);
  for (unsigned int i = threadIdx.x; i < chunk.count; i += kThreads) to[i] = word;
}

/// This block's part of a row.
struct RowPart {
  std::uint64_t row;
  std::uint64_t first;
  std::uint32_t count;
  bool leads;

  __device__ RowPart(std::uint64_t total, std::uint64_t row_length) {
    const std::uint64_t parts = (row_length + kRowChunk - 1) / kRowChunk;
    row = blockIdx.x / parts;
    const std::uint64_t within = blockIdx.x % parts * kRowChunk;
    leads = within == 0;
    first = row * row_length + within;
    const std::uint64_t row_end = (row + 1) * row_length;
    const std::uint64_t end = row_end < total ? row_end : total;
    const std::uint64_t left = first < end ? end - first : 0;
    count = left < kRowChunk ? static_cast<std::uint32_t>(left) : kRowChunk;
  }
};

/// One thread decides: at most 1,024 additions, next to reading millions of elements.
__device__ Selected selected_before(const SelectionArguments& arguments, std::uint32_t passes) {
  __shared__ std::uint32_t bins[kBins];
  __shared__ Selected shared;
  Selected selected;
  selected.left = arguments.wanted;
  for (std::uint32_t pass = 0; pass < passes; ++pass) {
    bins[threadIdx.x] = arguments.workspace->histogram[pass][threadIdx.x];
    __syncthreads();
    if (threadIdx.x == 0) shared = narrowed(selected, bins, pass);
    __syncthreads();
    selected = shared;
  }
  return selected;
}

/// The sum over the block's threads, returned to all.
__device__ std::uint32_t block_sum(std::uint32_t value) {
  __shared__ std::uint32_t sums[kWarps];
  const std::uint32_t warp_sum = __reduce_add_sync(0xffffffffU, value);
  __syncthreads();  // all threads have read the previous call's sums
  if (threadIdx.x % kWarp == 0) sums[threadIdx.x / kWarp] = warp_sum;
  __syncthreads();
  std::uint32_t sum = 0;
  for (unsigned int warp = 0; warp < kWarps; ++warp) sum += sums[warp];
  return sum;
}

/// The number of earlier threads for which @p flag holds; total: of all threads.
__device__ std::uint32_t count_before(bool flag, std::uint32_t& total) {
  __shared__ std::uint32_t counts[kWarps];
  const std::uint32_t votes = __ballot_sync(0xffffffffU, flag);
  __syncthreads();  // all threads have read the previous call's counts
  if (threadIdx.x % kWarp == 0) counts[threadIdx.x / kWarp] = __popc(votes);
  __syncthreads();
  std::uint32_t before = __popc(votes & ((1U << threadIdx.x % kWarp) - 1U));
  total = 0;
  for (unsigned int warp = 0; warp < kWarps; ++warp) {
    if (warp < threadIdx.x / kWarp) before += counts[warp];
    total += counts[warp];
  }
  return before;
}

static_assert(kThreads == kBins);

}  // namespace
}  // namespace ddp::kernels

// NOLINTBEGIN(bugprone-macro-parentheses): types
#define DDP_COPY(name, From, To)                                                        \
  extern "C" __global__ void __launch_bounds__(ddp::kernels::kThreads)                  \
      ddp_copy_##name(const __grid_constant__ ddp::kernels::PieceArguments arguments) { \
    ddp::kernels::copy<ddp::kernels::From, ddp::kernels::To>(arguments);                \
  }
#define DDP_FILL(name, Word)                                                            \
  extern "C" __global__ void __launch_bounds__(ddp::kernels::kThreads)                  \
      ddp_fill_##name(const __grid_constant__ ddp::kernels::PieceArguments arguments) { \
    ddp::kernels::fill<Word>(arguments);                                                \
  }
// NOLINTEND(bugprone-macro-parentheses)

DDP_COPY(f32_f32, Float32Element, Float32Element)
DDP_COPY(f32_f16, Float32Element, Float16Element)
DDP_COPY(f16_f32, Float16Element, Float32Element)
DDP_COPY(f32_bf16, Float32Element, BFloat16Element)
DDP_COPY(bf16_f32, BFloat16Element, Float32Element)
DDP_COPY(f32_e4m3, Float32Element, Float8Element<ddp::kernels::E4M3>)
DDP_COPY(e4m3_f32, Float8Element<ddp::kernels::E4M3>, Float32Element)
DDP_COPY(f32_e5m2, Float32Element, Float8Element<ddp::kernels::E5M2>)
DDP_COPY(e5m2_f32, Float8Element<ddp::kernels::E5M2>, Float32Element)
DDP_COPY(f16_f16, Float16Element, Float16Element)
DDP_COPY(bf16_bf16, BFloat16Element, BFloat16Element)
DDP_COPY(f64_f64, Float64Element, Float64Element)
DDP_FILL(1, std::uint8_t)
DDP_FILL(2, std::uint16_t)
DDP_FILL(4, std::uint32_t)
DDP_FILL(8, std::uint64_t)

extern "C" __global__ void __launch_bounds__(ddp::kernels::kThreads)
    ddp_copy_raw(const __grid_constant__ ddp::kernels::PieceArguments arguments) {
  ddp::kernels::copy_chunk<std::uint8_t, std::uint8_t, true>(arguments, [](std::uint8_t byte) { return byte; });
}

extern "C" __global__ void __launch_bounds__(ddp::kernels::kThreads)
    ddp_range(const __grid_constant__ ddp::kernels::RangeArguments arguments) {
  using namespace ddp::kernels;
  const RowPart part(arguments.count, arguments.row);
  std::uint32_t largest = 0;
  std::uint32_t smallest = 0;
  for (unsigned int i = threadIdx.x; i < part.count; i += kThreads) {
    const float value = arguments.from[part.first + i];
    largest = max(largest, order_key(value));
    smallest = max(smallest, reverse_key(value));
  }
  largest = __reduce_max_sync(0xffffffffU, largest);
  smallest = __reduce_max_sync(0xffffffffU, smallest);
  if (threadIdx.x % kWarp == 0 && largest != 0) {
    atomicMax(arguments.range + 2 * part.row, largest);
    atomicMax(arguments.range + 2 * part.row + 1, smallest);
  }
}

extern "C" __global__ void __launch_bounds__(ddp::kernels::kThreads)
    ddp_quantize(const __grid_constant__ ddp::kernels::QuantizeArguments arguments) {
  using namespace ddp::kernels;
  const RowPart part(arguments.count, arguments.row);
  if (part.count == 0) return;
  const bool symmetric = arguments.symmetric != 0;
  const RowScale scale = row_scale(arguments.range[2 * part.row], arguments.range[2 * part.row + 1], symmetric);
  if (part.leads && threadIdx.x == 0) arguments.scales[part.row] = scale;
  auto* to = static_cast<std::uint8_t*>(arguments.to) + part.first;  // two's complement: works for int8, too
  for (unsigned int i = threadIdx.x; i < part.count; i += kThreads) {
    to[i] = static_cast<std::uint8_t>(quantized(arguments.from[part.first + i], scale, symmetric));
  }
}

extern "C" __global__ void __launch_bounds__(ddp::kernels::kThreads)
    ddp_dequantize(const __grid_constant__ ddp::kernels::DequantizeArguments arguments) {
  using namespace ddp::kernels;
  const RowPart part(arguments.count, arguments.row);
  if (part.count == 0) return;
  const auto* const bytes = static_cast<const std::uint8_t*>(arguments.from);
  float* const to = arguments.to + part.first;
  for (std::uint32_t message = 0; message < arguments.messages; ++message) {
    const RowScale scale = behind(arguments.scales, message * arguments.stride)[part.row];
    const std::uint8_t* const from = behind(bytes, message * arguments.stride) + part.first;
    for (unsigned int i = threadIdx.x; i < part.count; i += kThreads) {
      const std::int32_t step = arguments.symmetric != 0 ? static_cast<std::int8_t>(from[i]) : from[i];
      const float value = dequantized(step, scale);
      to[i] = message == 0 ? value : to[i] + value;
    }
  }
  if (arguments.divisor == 1) return;
#pragma unroll 1
  for (unsigned int i = threadIdx.x; i < part.count; i += kThreads) to[i] /= arguments.divisor;
}

extern "C" __global__ void __launch_bounds__(ddp::kernels::kThreads)
    ddp_selection_histogram(const __grid_constant__ ddp::kernels::SelectionArguments arguments) {
  using namespace ddp::kernels;
  __shared__ std::uint32_t histogram[kBins];
  const std::uint32_t prefix = selected_before(arguments, arguments.pass).prefix;
  histogram[threadIdx.x] = 0;
  __syncthreads();
  const std::uint32_t first = blockIdx.x * arguments.block_size;
  const std::uint32_t length = min(arguments.block_size, arguments.count - first);
  for (std::uint32_t i = threadIdx.x; i < length; i += kThreads) {
    const std::uint32_t key = magnitude_key(arguments.from[first + i]);
    if (begins_with(key, prefix, arguments.pass)) {
      atomicAdd(histogram + ((key >> pass_shift(arguments.pass)) & (kBins - 1)), 1U);
    }
  }
  __syncthreads();
  const std::uint32_t found = histogram[threadIdx.x];
  if (found != 0) atomicAdd(arguments.workspace->histogram[arguments.pass] + threadIdx.x, found);
}

extern "C" __global__ void __launch_bounds__(ddp::kernels::kThreads)
    ddp_selection_count(const __grid_constant__ ddp::kernels::SelectionArguments arguments) {
  using namespace ddp::kernels;
  const std::uint32_t last = selected_before(arguments, kPasses).prefix;
  const std::uint32_t first = blockIdx.x * arguments.block_size;
  const std::uint32_t length = min(arguments.block_size, arguments.count - first);
  std::uint32_t greater = 0;
  std::uint32_t equal = 0;
  for (std::uint32_t i = threadIdx.x; i < length; i += kThreads) {
    const std::uint32_t key = magnitude_key(arguments.from[first + i]);
    greater += key > last;
    equal += key == last;
  }
  greater = block_sum(greater);
  equal = block_sum(equal);
  if (threadIdx.x != 0) return;
  arguments.workspace->greater[blockIdx.x] = greater;
  arguments.workspace->equal[blockIdx.x] = equal;
}

extern "C" __global__ void __launch_bounds__(ddp::kernels::kThreads)
    ddp_selection_gather(const __grid_constant__ ddp::kernels::SelectionArguments arguments) {
  using namespace ddp::kernels;
  const Selected selected = selected_before(arguments, kPasses);
  std::uint32_t greater_before = 0;
  std::uint32_t equal_before = 0;
  for (std::uint32_t block = threadIdx.x; block < blockIdx.x; block += kThreads) {
    greater_before += arguments.workspace->greater[block];
    equal_before += arguments.workspace->equal[block];
  }
  greater_before = block_sum(greater_before);
  equal_before = block_sum(equal_before);

  const std::uint32_t first = blockIdx.x * arguments.block_size;
  const std::uint32_t length = min(arguments.block_size, arguments.count - first);
  for (std::uint32_t tile = 0; tile < length; tile += kThreads) {
    const bool inside = tile + threadIdx.x < length;
    const std::uint32_t index = first + tile + threadIdx.x;
    const float value = inside ? arguments.from[index] : 0.0F;
    const std::uint32_t key = magnitude_key(value);
    std::uint32_t greater_in_tile = 0;
    std::uint32_t equal_in_tile = 0;
    const bool greater = inside && key > selected.prefix;
    const bool equal = inside && key == selected.prefix;
    const std::uint32_t my_greater = greater_before + count_before(greater, greater_in_tile);
    const std::uint32_t my_equal = equal_before + count_before(equal, equal_in_tile);
    if (greater || (equal && my_equal < selected.left)) {
      const std::uint32_t position = my_greater + min(my_equal, selected.left);
      arguments.indices[position] = index;
      arguments.values[position] = value;
    }
    greater_before += greater_in_tile;
    equal_before += equal_in_tile;
  }
}

extern "C" __global__ void __launch_bounds__(ddp::kernels::kThreads)
    ddp_scatter_add(const __grid_constant__ ddp::kernels::ScatterArguments arguments) {
  using namespace ddp::kernels;
  const std::uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i < arguments.count) arguments.to[arguments.indices[i]] += arguments.values[i] / arguments.divisor;
}

extern "C" __global__ void __launch_bounds__(ddp::kernels::kThreads)
    ddp_scatter_zero(const __grid_constant__ ddp::kernels::ScatterArguments arguments) {
  using namespace ddp::kernels;
  const std::uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i < arguments.count) arguments.to[arguments.indices[i]] = 0;
}

extern "C" __global__ void __launch_bounds__(ddp::kernels::kThreads)
    ddp_add(const __grid_constant__ ddp::kernels::PieceArguments arguments) {
  using namespace ddp::kernels;
  const Chunk<false> chunk(arguments);
  const float* const from = static_cast<const float*>(arguments.from[chunk.piece]) + chunk.first;
  float* const to = static_cast<float*>(arguments.to[chunk.piece]) + chunk.first;
#pragma unroll 4
  for (unsigned int i = threadIdx.x; i < chunk.count; i += kThreads) to[i] += from[i];
}

extern "C" __global__ void __launch_bounds__(ddp::kernels::kThreads)
    ddp_copy_finite(const __grid_constant__ ddp::kernels::PieceArguments arguments) {
  using namespace ddp::kernels;
  copy_chunk<float, float, false>(arguments, [](float value) { return finite_or_zero(value); });
}
