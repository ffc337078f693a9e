// What the kernels take: plain structs that processors and devices lay out alike. Each kernel has one of them as its
// only parameter, at most the 4 KiB that all drivers pass.
#pragma once

#include <cstdint>

namespace ddp::kernels {

inline constexpr unsigned int kThreads = 256;  ///< a block's
/// Groups of elements that each thread of a copy loads before it stores the first: enough bytes on their way.
inline constexpr unsigned int kGroupsPerThread = 2;

/// How many elements each load and store of a copy moves, and each block; the same for the launch and the kernel.
/// kRaw: bytes that are only moved.
template <bool kRaw>
inline constexpr std::uint32_t kGroupElements = kRaw ? 16 : 4;
template <bool kRaw>
inline constexpr std::uint32_t kChunkElements = kThreads* kGroupsPerThread* kGroupElements<kRaw>;

/// As many tensors as fit into the parameters of one launch.
inline constexpr std::uint32_t kMaxPieces = 168;

/// Copies with scale and cast, sums, and fills: piece i is done by the blocks from first_chunk[i] on.
struct PieceArguments {
  const void* from[kMaxPieces];  ///< not of fills
  void* to[kMaxPieces];
  std::uint32_t count[kMaxPieces];        ///< elements, at least 1
  std::uint32_t first_chunk[kMaxPieces];  ///< ascending, from 0
  std::uint32_t pieces;
  std::uint32_t unused;
  double scale;           ///< of copies with a cast or scale: in float, except for float64
  std::uint64_t pattern;  ///< of fills: one element's bytes, the lowest ones
};
static_assert(sizeof(PieceArguments) <= 4096);

/// Quantization of rows: one for a whole tensor, or one for each channel. The last row may be shorter.
inline constexpr std::uint32_t kRowChunk = kThreads * 16;

/// The smallest and the largest value of each row, as keys that are ordered like the numbers, so that atomic operations
/// combine them. range[2 * row] grows to the largest key, range[2 * row + 1] to the complement of the smallest.
struct RangeArguments {
  const float* from;
  std::uint32_t* range;  ///< all 0 before
  std::uint64_t count;
  std::uint64_t row;
};

/// What a row's bytes mean: value = (byte - zero_point) * scale.
struct RowScale {
  float scale;       ///< NaN if the row has a value that is not finite; 0 if all are 0
  float zero_point;  ///< a whole number
};

struct QuantizeArguments {
  const float* from;
  const std::uint32_t* range;
  void* to;  ///< int8 if symmetric, else uint8
  RowScale* scales;
  std::uint64_t count;
  std::uint64_t row;
  std::uint32_t symmetric;
  std::uint32_t unused;
};

/// The sum of several messages, divided.
struct DequantizeArguments {
  const void* from;  ///< the first message's
  const RowScale* scales;
  float* to;
  std::uint64_t count;
  std::uint64_t row;
  std::uint64_t stride;    ///< bytes from each message's elements, and from its scales, to the next one's
  std::uint32_t messages;  ///< at least 1
  std::uint32_t symmetric;
  float divisor;
  std::uint32_t unused;
};

/// Selection of the largest magnitudes by their bits, eight at a time from the highest.
inline constexpr std::uint32_t kBins = 256;
inline constexpr std::uint32_t kPasses = 4;
inline constexpr std::uint32_t kMaxSelectionBlocks = 1024;

struct SelectionWorkspace {
  std::uint32_t histogram[kPasses][kBins];  ///< all 0 before
  std::uint32_t greater[kMaxSelectionBlocks];
  std::uint32_t equal[kMaxSelectionBlocks];
};

struct SelectionArguments {
  const float* from;
  SelectionWorkspace* workspace;
  std::uint32_t* indices;
  float* values;
  std::uint32_t count;
  std::uint32_t wanted;      ///< at most count
  std::uint32_t pass;        ///< of a histogram
  std::uint32_t block_size;  ///< elements of each block
};

struct ScatterArguments {
  const std::uint32_t* indices;  ///< each at most once
  const float* values;           ///< not of zeros
  float* to;
  std::uint32_t count;
  float divisor;  ///< of values
};

/// Partial sums of products over a row, which are added up in their order; then those over a column's rows.
inline constexpr std::uint32_t kColumnLanes = 16;
inline constexpr std::uint32_t kRowLanes = 8;
/// Columns that a block adds up.
inline constexpr std::uint32_t kColumnTile = kThreads / kRowLanes;
/// Elements that a block expands.
inline constexpr std::uint32_t kExpandChunk = kThreads * 8;

/// A row-major matrix, whose elements behind its end are 0, and its thin factors, whose columns lie one behind the
/// other.
struct LowRankArguments {
  float* matrix;
  float* left;                  ///< of as many elements as the matrix has rows, times rank
  float* right;                 ///< the same of its columns
  float* difference;            ///< of an expansion: what it changes, before - after; may be null
  const std::uint32_t* finite;  ///< of an expansion: 0 where the difference is to be 0
  std::uint64_t count;          ///< elements of the matrix, at least 1
  std::uint64_t columns;
  std::uint32_t rank;
  float scale;  ///< of an expansion
};

/// As many factors as fit into the parameters of one launch: each is one block's.
inline constexpr std::uint32_t kMaxFactors = 96;

struct FactorArguments {
  float* data[kMaxFactors];
  const float* from[kMaxFactors];  ///< of beginnings: what to begin with; null: random numbers
  std::uint64_t seed[kMaxFactors];
  std::uint64_t length[kMaxFactors];  ///< of a column
  std::uint32_t columns[kMaxFactors];
  std::uint32_t factors;
  float epsilon;          ///< added to the length that a column is divided by
  std::uint32_t* finite;  ///< of checks: by factor, whether all its elements are
};
static_assert(sizeof(FactorArguments) <= 4096);

/// As many tensors as fit into the parameters of one launch of exact sums.
inline constexpr std::uint32_t kMaxSums = 126;

/// Piece i is done by the blocks from first_chunk[i] on, as in PieceArguments.
struct ExactArguments {
  void* values[kMaxSums];
  std::int64_t* sums[kMaxSums];         ///< high and low of each element
  std::int64_t* broken[kMaxSums];       ///< how many values had no place in a sum
  std::uint32_t count[kMaxSums];        ///< elements, at least 1
  std::uint32_t first_chunk[kMaxSums];  ///< ascending, from 0
  std::uint32_t pieces;
  std::uint32_t unused;
  const std::int64_t* terms;  ///< of means: how many each sum has
};
static_assert(sizeof(ExactArguments) <= 4096);

}  // namespace ddp::kernels
