#include "kernels/low_rank.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/errors.hpp"
#include "kernels/arguments.hpp"

namespace ddp::kernels {
namespace {

LowRankArguments low_rank(const Matrix& matrix, const Factor& left, const Factor& right) {
  return {.matrix = matrix.elements,
          .left = left.data,
          .right = right.data,
          .difference = nullptr,
          .finite = nullptr,
          .count = matrix.count,
          .columns = matrix.columns,
          .rank = static_cast<std::uint32_t>(left.columns),
          .scale = 1};
}

void launch_low_rank(Executor& executor, Kernel kernel, std::size_t blocks, const LowRankArguments& arguments) {
  constexpr std::size_t kMostBlocks = 0x7fffffff;
  if (blocks > kMostBlocks) {
    base::throw_invalid_argument(
        "compressing a gradient",
        fmt::format("it has {} elements, to be multiplied by {} columns", arguments.count, arguments.rank),
        "take a lower rank");
  }
  executor.launch({.kernel = kernel, .blocks = static_cast<std::uint32_t>(blocks), .argument = &arguments});
}

/// One block for each factor. @param put(arguments, place, item) what differs from item to item.
template <class Items, class Put>
void launch_factors(Executor& executor, Kernel kernel, const Items& items, float epsilon, std::uint32_t* finite,
                    Put put) {
  for (std::size_t first = 0; first < items.size(); first += kMaxFactors) {
    FactorArguments arguments{};
    arguments.factors = static_cast<std::uint32_t>(std::min<std::size_t>(kMaxFactors, items.size() - first));
    arguments.epsilon = epsilon;
    arguments.finite = finite == nullptr ? nullptr : finite + first;
    for (std::uint32_t i = 0; i < arguments.factors; ++i) {
      const Factor& factor = put(arguments, i, items[first + i]);
      arguments.data[i] = factor.data;
      arguments.length[i] = factor.length;
      arguments.columns[i] = static_cast<std::uint32_t>(factor.columns);
    }
    executor.launch({.kernel = kernel, .blocks = arguments.factors, .argument = &arguments});
  }
}

const Factor& put_nothing(FactorArguments& /*same*/, std::uint32_t /*same*/, const Factor& factor) { return factor; }

}  // namespace

void multiply(Executor& executor, const Matrix& matrix, const Factor& right, const Factor& left) {
  constexpr std::size_t kProducts = kThreads / kColumnLanes;  // of a block
  launch_low_rank(executor, Kernel::low_rank_left, (matrix.rows() * left.columns + kProducts - 1) / kProducts,
                  low_rank(matrix, left, right));
}

void multiply_transposed(Executor& executor, const Matrix& matrix, const Factor& left, const Factor& right) {
  const std::size_t tiles = (matrix.columns + kColumnTile - 1) / kColumnTile;
  launch_low_rank(executor, Kernel::low_rank_right, tiles * right.columns, low_rank(matrix, left, right));
}

void expand(Executor& executor, const Factor& left, const Factor& right, float scale, const Matrix& matrix,
            float* difference, const std::uint32_t* finite) {
  LowRankArguments arguments = low_rank(matrix, left, right);
  arguments.difference = difference;
  arguments.finite = finite;
  arguments.scale = scale;
  launch_low_rank(executor, Kernel::low_rank_expand, (matrix.count + kExpandChunk - 1) / kExpandChunk, arguments);
}

void orthogonalize(Executor& executor, std::span<const Factor> factors, float epsilon) {
  launch_factors(executor, Kernel::orthogonalize, factors, epsilon, nullptr, put_nothing);
}

void begin_factors(Executor& executor, std::span<const Beginning> beginnings, float epsilon) {
  const auto put = [](FactorArguments& arguments, std::uint32_t place, const Beginning& beginning) -> const Factor& {
    arguments.from[place] = beginning.kept;
    arguments.seed[place] = beginning.seed;
    return beginning.factor;
  };
  launch_factors(executor, Kernel::begin_factors, beginnings, epsilon, nullptr, put);
}

void check_finite(Executor& executor, std::span<const Factor> factors, std::uint32_t* finite) {
  launch_factors(executor, Kernel::check_finite, factors, 0, finite, put_nothing);
}

}  // namespace ddp::kernels
