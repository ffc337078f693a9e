// Every collective, element type and reduction, compared with a plain loop over what all ranks contribute.
#include <array>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>

#include <fmt/format.h>

#include "rank_program/scenario.hpp"

namespace ddp::test {
namespace {

constexpr std::array kTypes{DType::float32, DType::float64, DType::float16, DType::bfloat16, DType::int8,
                            DType::int32,   DType::int64,   DType::uint8,   DType::boolean};
constexpr std::array kOps{ReduceOp::sum, ReduceOp::avg, ReduceOp::min, ReduceOp::max, ReduceOp::product};
constexpr std::array<std::size_t, 4> kCounts{0, 1, 7, 1000};
// more than a rank's share of memory holds at a time, and not a multiple of any segment
constexpr std::size_t kLargeCount = 270'001;

/// A tensor with its memory, whose elements are read and written as doubles.
class Buffer {
 public:
  Buffer(DType dtype, std::size_t count) : dtype_(dtype), count_(count), bytes_(count * size_of(dtype) + 1) {}
  TensorView view() { return {bytes_.data(), dtype_, {static_cast<std::int64_t>(count_)}}; }
  std::size_t count() const { return count_; }
  DType dtype() const { return dtype_; }

  double get(std::size_t i) const {
    switch (dtype_) {
      case DType::float32: return read<float>(i);
      case DType::float64: return read<double>(i);
      case DType::float16: return to_float(read<Half>(i));
      case DType::bfloat16: return to_float(read<BFloat16>(i));
      case DType::int8: return read<std::int8_t>(i);
      case DType::int32: return read<std::int32_t>(i);
      case DType::int64: return static_cast<double>(read<std::int64_t>(i));
      default: return read<std::uint8_t>(i);
    }
  }
  void set(std::size_t i, double value) {
    switch (dtype_) {
      case DType::float32: return write(i, static_cast<float>(value));
      case DType::float64: return write(i, value);
      case DType::float16: return write(i, to_half(static_cast<float>(value)));
      case DType::bfloat16: return write(i, to_bfloat16(static_cast<float>(value)));
      case DType::int8: return write(i, static_cast<std::int8_t>(value));
      case DType::int32: return write(i, static_cast<std::int32_t>(value));
      case DType::int64: return write(i, static_cast<std::int64_t>(value));
      default: return write(i, static_cast<std::uint8_t>(value));
    }
  }

 private:
  template <class T>
  T read(std::size_t i) const {
    T value;
    std::memcpy(&value, bytes_.data() + i * sizeof(T), sizeof(T));
    return value;
  }
  template <class T>
  void write(std::size_t i, T value) {
    std::memcpy(bytes_.data() + i * sizeof(T), &value, sizeof(T));
  }
  DType dtype_;
  std::size_t count_;
  std::vector<std::byte> bytes_;
};

/// What rank contributes as element i: 1 to 3, so that sums and products of a few ranks are exact in every type.
double contribution(DType dtype, int rank, std::size_t i) {
  const auto mixed = static_cast<std::size_t>(rank) * 7 + i * 5 + i / 13;
  return dtype == DType::boolean ? static_cast<double>(mixed % 2) : static_cast<double>(1 + mixed % 3);
}

Buffer filled(DType dtype, int rank, std::size_t count) {
  Buffer buffer(dtype, count);
  for (std::size_t i = 0; i < count; ++i) buffer.set(i, contribution(dtype, rank, i));
  return buffer;
}

double expected(DType dtype, ReduceOp op, int ranks, std::size_t i) {
  double result = contribution(dtype, 0, i);
  for (int rank = 1; rank < ranks; ++rank) {
    const double value = contribution(dtype, rank, i);
    switch (op) {
      case ReduceOp::sum:
      case ReduceOp::avg: result += value; break;
      case ReduceOp::min: result = std::min(result, value); break;
      case ReduceOp::max: result = std::max(result, value); break;
      case ReduceOp::product: result *= value; break;
    }
  }
  if (dtype == DType::boolean) return result > 0 ? 1 : 0;
  if (op != ReduceOp::avg) return result;
  const bool integer = dtype == DType::int8 || dtype == DType::int32 || dtype == DType::int64 || dtype == DType::uint8;
  return integer ? std::trunc(result / ranks) : result / ranks;
}

/// All but averages are exact. Averages of float16 and bfloat16 are divided before the sum: each of at most 8 terms of
/// at most 3/W is rounded to 11 or 8 bits, and so is each partial sum.
double tolerance(DType dtype, ReduceOp op) {
  if (op != ReduceOp::avg) return 0;
  switch (dtype) {
    case DType::float32: return 1e-6;
    case DType::float64: return 1e-15;
    case DType::float16: return 8 * 3 * 0x1p-11;
    case DType::bfloat16: return 8 * 3 * 0x1p-8;
    default: return 0;
  }
}

void compare(const Buffer& buffer, const std::string& what, double limit,
             const std::function<double(std::size_t)>& reference) {
  for (std::size_t i = 0; i < buffer.count(); ++i) {
    const double wanted = reference(i);
    if (std::abs(buffer.get(i) - wanted) <= limit) continue;
    check(false, fmt::format("{} of {} x {}: element {} is {}, not {}", what, to_string(buffer.dtype()), buffer.count(),
                             i, buffer.get(i), wanted));
  }
}

void check_reductions(ProcessGroup& group, DType dtype, std::size_t count) {
  const int ranks = group.size();
  const int root = ranks - 1;
  for (const ReduceOp op : kOps) {
    if (dtype == DType::boolean && op == ReduceOp::avg) continue;
    const double limit = tolerance(dtype, op);
    const std::string name(to_string(op));
    Buffer all = filled(dtype, group.rank(), count);
    group.all_reduce(all.view(), op).wait();
    compare(all, "all_reduce " + name, limit, [&](std::size_t i) { return expected(dtype, op, ranks, i); });

    Buffer one = filled(dtype, group.rank(), count);
    group.reduce(one.view(), root, op).wait();
    if (group.rank() == root) {
      compare(one, "reduce " + name, limit, [&](std::size_t i) { return expected(dtype, op, ranks, i); });
    }
    Buffer parts = filled(dtype, group.rank(), count * static_cast<std::size_t>(ranks));
    Buffer part(dtype, count);
    group.reduce_scatter(parts.view(), part.view(), op).wait();
    const std::size_t first = static_cast<std::size_t>(group.rank()) * count;
    compare(part, "reduce_scatter " + name, limit,
            [&](std::size_t i) { return expected(dtype, op, ranks, first + i); });
  }
}

void check_movements(ProcessGroup& group, DType dtype, std::size_t count) {
  const auto ranks = static_cast<std::size_t>(group.size());
  const auto rank = static_cast<std::size_t>(group.rank());
  const int root = group.size() / 2;

  Buffer sent = filled(dtype, group.rank(), count);
  group.broadcast(sent.view(), root).wait();
  compare(sent, "broadcast", 0, [&](std::size_t i) { return contribution(dtype, root, i); });

  const Buffer own = filled(dtype, group.rank(), count);
  Buffer input = own;
  Buffer all(dtype, count * ranks);
  const auto by_rank = [&](std::size_t i) { return contribution(dtype, static_cast<int>(i / count), i % count); };
  group.all_gather(input.view(), all.view()).wait();
  compare(all, "all_gather", 0, by_rank);
  Buffer gathered(dtype, group.rank() == root ? count * ranks : 0);
  group.gather(input.view(), gathered.view(), root).wait();
  compare(gathered, "gather", 0, by_rank);

  std::vector<std::size_t> counts;
  std::vector<std::pair<int, std::size_t>> sources;
  for (std::size_t other = 0; other < ranks; ++other) {
    counts.push_back(other == 1 ? 0 : count / (other + 1));  // one rank has nothing to give
    for (std::size_t i = 0; i < counts.back(); ++i) sources.emplace_back(static_cast<int>(other), i);
  }
  Buffer uneven = filled(dtype, group.rank(), counts[rank]);
  Buffer joined(dtype, sources.size());
  group.all_gather_v(uneven.view(), joined.view(), counts).wait();
  compare(joined, "all_gather_v", 0,
          [&](std::size_t i) { return contribution(dtype, sources[i].first, sources[i].second); });

  Buffer parts = filled(dtype, group.rank(), count * ranks);
  Buffer part(dtype, count);
  group.scatter(parts.view(), part.view(), root).wait();
  compare(part, "scatter", 0, [&](std::size_t i) { return contribution(dtype, root, rank * count + i); });

  Buffer swapped(dtype, count * ranks);
  group.all_to_all(parts.view(), swapped.view()).wait();
  compare(swapped, "all_to_all", 0,
          [&](std::size_t i) { return contribution(dtype, static_cast<int>(i / count), rank * count + i % count); });

  if (ranks > 1) {
    const int next = static_cast<int>((rank + 1) % ranks);
    const int previous = static_cast<int>((rank + ranks - 1) % ranks);
    Buffer received(dtype, count);
    const Work sending = group.send(input.view(), next, 5);
    const Work receiving = group.recv(received.view(), previous, 5);
    receiving.wait();
    sending.wait();
    compare(received, "recv", 0, [&](std::size_t i) { return contribution(dtype, previous, i); });
  }
}

}  // namespace

void run_collectives(World& world) {
  ProcessGroup group = make_process_group(world);
  for (const DType dtype : kTypes) {
    for (const std::size_t count : kCounts) {
      check_reductions(group, dtype, count);
      check_movements(group, dtype, count);
    }
  }
  check_reductions(group, DType::float32, kLargeCount);
  check_movements(group, DType::float32, kLargeCount);
  group.barrier().wait();
}

}  // namespace ddp::test
