// The kernels of low_rank.hpp on devices, a part of kernels.cu. Sums are in the order of host_kernels.cpp.
// Loops with divisions are not unrolled, which would be kilobytes of code each.
#pragma once

#include "kernels/element.hpp"

namespace ddp::kernels {
namespace {

__device__ std::uint64_t rows_of(const LowRankArguments& arguments) {
  return (arguments.count - 1) / arguments.columns + 1;
}

/// Elements of a row that the matrix has.
__device__ std::uint64_t row_length(const LowRankArguments& arguments, std::uint64_t row) {
  const std::uint64_t left = arguments.count - row * arguments.columns;
  return left < arguments.columns ? left : arguments.columns;
}

/// Over the block's threads, for all of them.
__device__ __noinline__ double block_dot(const float* a, const float* b, std::uint64_t count) {
  __shared__ double sums[kThreads];
  double sum = 0;
  for (std::uint64_t i = threadIdx.x; i < count; i += kThreads) {
    sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  for (unsigned int half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
    __syncthreads();
  }
  const double total = sums[0];
  __syncthreads();  // read by all before the next call's sums
  return total;
}

__device__ bool block_finite(const float* values, std::uint64_t count) {
  bool finite = true;
  for (std::uint64_t i = threadIdx.x; i < count; i += kThreads) finite = finite && is_finite(values[i]);
  return __syncthreads_and(finite) != 0;
}

/// This block's factor. Each thread has the same elements of every column, so that it sees what it has written itself.
class Columns {
 public:
  __device__ explicit Columns(const FactorArguments& arguments)
      : data_(arguments.data[blockIdx.x]), length_(arguments.length[blockIdx.x]), epsilon_(arguments.epsilon) {}

  /// Makes column @p index orthogonal to those before it. @return whether more than rounding is left of it.
  __device__ bool project(std::uint32_t index) const {
    float* const column = at(index);
    const double before = sqrt(block_dot(column, column, length_));
    for (int pass = 0; pass < 2; ++pass) {
      for (std::uint32_t other = 0; other < index; ++other) {
        const float* const base = at(other);
        const double part = block_dot(column, base, length_);
#pragma unroll 1
        for (std::uint64_t i = threadIdx.x; i < length_; i += kThreads) {
          column[i] = static_cast<float>(static_cast<double>(column[i]) - part * static_cast<double>(base[i]));
        }
      }
    }
    // NaN counts as something: it must not vanish
    return !(sqrt(block_dot(column, column, length_)) <= kColumnNoise * before);
  }
  __device__ void normalize(std::uint32_t index) const {
    float* const column = at(index);
    const double length = sqrt(block_dot(column, column, length_)) + static_cast<double>(epsilon_);
    if (length == 0) return;
#pragma unroll 1
    for (std::uint64_t i = threadIdx.x; i < length_; i += kThreads) {
      column[i] = static_cast<float>(static_cast<double>(column[i]) / length);
    }
  }
  __device__ void clear(std::uint32_t index) const {
    for (std::uint64_t i = threadIdx.x; i < length_; i += kThreads) at(index)[i] = 0;
  }
  __device__ void randomize(std::uint32_t index, std::uint64_t seed) const {
#pragma unroll 1
    for (std::uint64_t i = threadIdx.x; i < length_; i += kThreads) at(index)[i] = random_normal(seed, i);
  }

 private:
  __device__ float* at(std::uint32_t index) const { return data_ + index * length_; }

  float* data_;
  std::uint64_t length_;
  float epsilon_;
};

}  // namespace
}  // namespace ddp::kernels

/// Each product of a row and a column is done by kColumnLanes threads.
extern "C" __global__ void __launch_bounds__(ddp::kernels::kThreads)
    ddp_low_rank_left(const __grid_constant__ ddp::kernels::LowRankArguments arguments) {
  using namespace ddp::kernels;
  const std::uint32_t lane = threadIdx.x % kColumnLanes;
  const std::uint64_t product =
      static_cast<std::uint64_t>(blockIdx.x) * (kThreads / kColumnLanes) + threadIdx.x / kColumnLanes;
  const std::uint64_t row = product / arguments.rank;
  const std::uint64_t k = product % arguments.rank;
  const std::uint64_t rows = rows_of(arguments);
  if (row >= rows) return;  // all of the lanes
  const float* const a = arguments.matrix + row * arguments.columns;
  const float* const b = arguments.right + k * arguments.columns;
  const std::uint64_t count = row_length(arguments, row);
  const std::uint64_t whole = count / kColumnLanes * kColumnLanes;
  float lane_sum = 0;
#pragma unroll 4
  for (std::uint64_t i = lane; i < whole; i += kColumnLanes) lane_sum += a[i] * b[i];
  float sum = 0;
  for (std::uint64_t i = whole; i < count; ++i) sum += a[i] * b[i];
  const std::uint32_t lanes = 0xffffU << (threadIdx.x & kColumnLanes);  // of the warp: its lower or its upper half
  for (std::uint32_t each = 0; each < kColumnLanes; ++each) sum += __shfl_sync(lanes, lane_sum, each, kColumnLanes);
  if (lane == 0) arguments.left[k * rows + row] = sum;
}

/// A block's threads are kRowLanes times kColumnTile: they read whole lines of the matrix.
extern "C" __global__ void __launch_bounds__(ddp::kernels::kThreads)
    ddp_low_rank_right(const __grid_constant__ ddp::kernels::LowRankArguments arguments) {
  using namespace ddp::kernels;
  __shared__ float sums[kRowLanes][kColumnTile];
  const std::uint32_t in_tile = threadIdx.x % kColumnTile;
  const std::uint32_t lane = threadIdx.x / kColumnTile;
  const std::uint64_t k = blockIdx.x % arguments.rank;
  const std::uint64_t column = static_cast<std::uint64_t>(blockIdx.x / arguments.rank) * kColumnTile + in_tile;
  const std::uint64_t rows = rows_of(arguments);
  const float* const weights = arguments.left + k * rows;
  float sum = 0;
  if (column < arguments.columns) {
#pragma unroll 4
    for (std::uint64_t row = lane; row < rows; row += kRowLanes) {
      const std::uint64_t element = row * arguments.columns + column;
      if (element < arguments.count) sum += weights[row] * arguments.matrix[element];
    }
  }
  sums[lane][in_tile] = sum;
  __syncthreads();
  if (lane != 0 || column >= arguments.columns) return;
  float total = 0;
  for (std::uint32_t each = 0; each < kRowLanes; ++each) total += sums[each][in_tile];
  arguments.right[k * arguments.columns + column] = total;
}

extern "C" __global__ void __launch_bounds__(ddp::kernels::kThreads)
    ddp_low_rank_expand(const __grid_constant__ ddp::kernels::LowRankArguments arguments) {
  using namespace ddp::kernels;
  const std::uint64_t rows = rows_of(arguments);
  const bool finite = arguments.finite == nullptr || *arguments.finite != 0;
  const std::uint64_t first = static_cast<std::uint64_t>(blockIdx.x) * kExpandChunk;
  const std::uint64_t end = first + kExpandChunk < arguments.count ? first + kExpandChunk : arguments.count;
  const bool narrow = arguments.count <= 0xffffffffU;  // divisions of 32 bits take a fraction of the time
#pragma unroll 1
  for (std::uint64_t i = first + threadIdx.x; i < end; i += kThreads) {
    const std::uint64_t row =
        narrow ? static_cast<std::uint32_t>(i) / static_cast<std::uint32_t>(arguments.columns) : i / arguments.columns;
    const std::uint64_t column = i - row * arguments.columns;
    float value = 0;
    for (std::uint32_t k = 0; k < arguments.rank; ++k) {
      value += arguments.left[k * rows + row] * arguments.scale * arguments.right[k * arguments.columns + column];
    }
    if (arguments.difference != nullptr) arguments.difference[i] = finite ? arguments.matrix[i] - value : 0.0F;
    arguments.matrix[i] = value;
  }
}

extern "C" __global__ void __launch_bounds__(ddp::kernels::kThreads)
    ddp_begin_factors(const __grid_constant__ ddp::kernels::FactorArguments arguments) {
  using namespace ddp::kernels;
  const Columns columns(arguments);
  float* const data = arguments.data[blockIdx.x];
  const float* const from = arguments.from[blockIdx.x];
  const std::uint64_t seed = arguments.seed[blockIdx.x];
  const std::uint64_t length = arguments.length[blockIdx.x];
  const bool keeps = from != nullptr && block_finite(from, length * arguments.columns[blockIdx.x]);
  for (std::uint32_t k = 0; k < arguments.columns[blockIdx.x]; ++k) {
#pragma unroll 1
    for (std::uint64_t i = threadIdx.x; i < length; i += kThreads) {
      const std::uint64_t place = k * length + i;
      data[place] = keeps ? from[place] : random_normal(seed, place);
    }
  }
  for (std::uint32_t k = 0; k < arguments.columns[blockIdx.x]; ++k) {
    if (!columns.project(k)) {
      columns.randomize(k, seed + 1 + k);
      columns.project(k);
    }
    columns.normalize(k);
  }
}

extern "C" __global__ void __launch_bounds__(ddp::kernels::kThreads)
    ddp_orthogonalize(const __grid_constant__ ddp::kernels::FactorArguments arguments) {
  using namespace ddp::kernels;
  const Columns columns(arguments);
  for (std::uint32_t k = 0; k < arguments.columns[blockIdx.x]; ++k) {
    if (!columns.project(k)) columns.clear(k);
    columns.normalize(k);
  }
}

extern "C" __global__ void __launch_bounds__(ddp::kernels::kThreads)
    ddp_check_finite(const __grid_constant__ ddp::kernels::FactorArguments arguments) {
  using namespace ddp::kernels;
  const std::uint64_t count = arguments.length[blockIdx.x] * arguments.columns[blockIdx.x];
  const bool finite = block_finite(arguments.data[blockIdx.x], count);
  if (threadIdx.x == 0) arguments.finite[blockIdx.x] = finite ? 1 : 0;
}
