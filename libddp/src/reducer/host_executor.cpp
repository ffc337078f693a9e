#include "reducer/host_executor.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "collectives/reduce_kernels.hpp"
#include "kernels/copies.hpp"

namespace ddp::reducer {
namespace {

kernels::Format cast_format(DType type) {
  if (type == DType::float16) return kernels::Format::float16;
  if (type == DType::bfloat16) return kernels::Format::bfloat16;
  return kernels::Format::float32;
}

}  // namespace

void HostExecutor::copy(std::span<const TensorCopy> copies, DType from, DType to, int divisor) {
  for (const TensorCopy& each : copies) {
    if (each.count == 0) continue;
    if (each.from == nullptr) {
      std::memset(each.to, 0, each.count * size_of(to));
    } else if (from != to) {
      const std::array pieces{kernels::Piece{.from = each.from, .to = each.to, .count = each.count}};
      kernels::copy(kernels_, pieces, cast_format(from), cast_format(to), 1.0 / divisor);
    } else if (divisor > 1) {
      collectives::divide_into(each.to, each.from, to, each.count, divisor);
    } else if (each.from != each.to) {
      std::memcpy(each.to, each.from, each.count * size_of(to));
    }
  }
}

Bytes HostExecutor::read(const void* from, std::size_t bytes, Deadline /*at once*/) {
  const auto* const begin = static_cast<const std::byte*>(from);
  return {begin, begin + bytes};
}

void HostExecutor::write(std::shared_ptr<const Bytes> from, void* to, Deadline /*at once*/) {
  std::ranges::copy(*from, static_cast<std::byte*>(to));
}

}  // namespace ddp::reducer
