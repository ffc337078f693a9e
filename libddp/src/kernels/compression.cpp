#include "kernels/compression.hpp"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include <ddp/error.hpp>

#include "base/errors.hpp"
#include "kernels/copies.hpp"

namespace ddp::kernels {
namespace {

constexpr std::size_t kMaxBlocks = 0x7fffffff;
constexpr std::size_t kMaxSelected = std::size_t{1} << 31U;

/// Blocks of a kernel that works on rows: as many for each as a whole one needs.
std::uint32_t row_blocks(const Rows& rows) {
  if (rows.row == 0) base::throw_invalid_argument("quantizing a tensor", "its rows have no elements", {});
  // a tensor that is shorter than its row is one row
  const std::size_t parts = (std::min(rows.row, rows.count) + kRowChunk - 1) / kRowChunk;
  if (rows.number() > kMaxBlocks / parts) {
    base::throw_invalid_argument("quantizing a tensor",
                                 fmt::format("it has {} rows of {} elements", rows.number(), rows.row),
                                 "take longer rows");
  }
  return static_cast<std::uint32_t>(rows.number() * parts);
}

/// As the kernels take it: no row is longer than the tensor.
std::uint64_t row_length(const Rows& rows) { return std::min(rows.row, rows.count); }

void zero(Executor& executor, std::uint32_t* words, std::size_t count) {
  constexpr std::array<std::byte, 4> kZero{};
  const Part part{.data = words, .count = count};
  fill(executor, {&part, 1}, kZero);
}

void scatter(Executor& executor, Kernel kernel, ScatterArguments arguments, std::size_t count) {
  if (count == 0) return;
  if (count > kMaxSelected)
    base::throw_invalid_argument("changing selected elements", fmt::format("there are {}", count), {});
  arguments.count = static_cast<std::uint32_t>(count);
  executor.launch({.kernel = kernel,
                   .blocks = static_cast<std::uint32_t>((count + kThreads - 1) / kThreads),
                   .argument = &arguments});
}

}  // namespace

void quantize(Executor& executor, const float* from, Rows rows, Quantization kind, void* to, RowScale* scales,
              std::uint32_t* workspace) {
  if (rows.count == 0) return;
  const std::uint32_t blocks = row_blocks(rows);
  zero(executor, workspace, 2 * rows.number());
  const RangeArguments range{.from = from, .range = workspace, .count = rows.count, .row = row_length(rows)};
  executor.launch({.kernel = Kernel::range, .blocks = blocks, .argument = &range});
  const QuantizeArguments arguments{.from = from,
                                    .range = workspace,
                                    .to = to,
                                    .scales = scales,
                                    .count = rows.count,
                                    .row = row_length(rows),
                                    .symmetric = kind == Quantization::symmetric ? 1U : 0U,
                                    .unused = 0};
  executor.launch({.kernel = Kernel::quantize, .blocks = blocks, .argument = &arguments});
}

void dequantize(Executor& executor, const void* from, const RowScale* scales, Messages messages, Rows rows,
                Quantization kind, float* to, int divisor) {
  if (rows.count == 0) return;
  const DequantizeArguments arguments{.from = from,
                                      .scales = scales,
                                      .to = to,
                                      .count = rows.count,
                                      .row = row_length(rows),
                                      .stride = messages.stride_bytes,
                                      .messages = static_cast<std::uint32_t>(messages.number),
                                      .symmetric = kind == Quantization::symmetric ? 1U : 0U,
                                      .divisor = static_cast<float>(divisor),
                                      .unused = 0};
  executor.launch({.kernel = Kernel::dequantize, .blocks = row_blocks(rows), .argument = &arguments});
}

void select_largest(Executor& executor, const float* from, std::size_t count, std::size_t wanted,
                    std::uint32_t* indices, float* values, SelectionWorkspace* workspace) {
  if (wanted > count || count > kMaxSelected) {
    base::throw_invalid_argument("selecting the largest elements", fmt::format("{} of {} are wanted", wanted, count),
                                 fmt::format("of at most {} elements, at most all", kMaxSelected));
  }
  if (wanted == 0) return;
  const std::size_t tiles = (count + kThreads - 1) / kThreads;
  const std::size_t tiles_per_block = (tiles + kMaxSelectionBlocks - 1) / kMaxSelectionBlocks;
  const std::size_t block_size = tiles_per_block * kThreads;
  const auto blocks = static_cast<std::uint32_t>((count + block_size - 1) / block_size);
  zero(executor, &workspace->histogram[0][0], std::size_t{kPasses} * kBins);
  SelectionArguments arguments{.from = from,
                               .workspace = workspace,
                               .indices = indices,
                               .values = values,
                               .count = static_cast<std::uint32_t>(count),
                               .wanted = static_cast<std::uint32_t>(wanted),
                               .pass = 0,
                               .block_size = static_cast<std::uint32_t>(block_size)};
  for (; arguments.pass < kPasses; ++arguments.pass) {
    executor.launch({.kernel = Kernel::selection_histogram, .blocks = blocks, .argument = &arguments});
  }
  executor.launch({.kernel = Kernel::selection_count, .blocks = blocks, .argument = &arguments});
  executor.launch({.kernel = Kernel::selection_gather, .blocks = blocks, .argument = &arguments});
}

void scatter_add(Executor& executor, const std::uint32_t* indices, const float* values, std::size_t count, float* to,
                 int divisor) {
  scatter(executor, Kernel::scatter_add,
          {.indices = indices, .values = values, .to = to, .count = 0, .divisor = static_cast<float>(divisor)}, count);
}

void scatter_zero(Executor& executor, const std::uint32_t* indices, std::size_t count, float* to) {
  scatter(executor, Kernel::scatter_zero, {.indices = indices, .values = nullptr, .to = to, .count = 0, .divisor = 1},
          count);
}

}  // namespace ddp::kernels
