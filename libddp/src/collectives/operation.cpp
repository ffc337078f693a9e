#include "collectives/operation.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace ddp {

std::string_view to_string(ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::sum: return "sum";
    case ReduceOp::avg: return "avg";
    case ReduceOp::min: return "min";
    case ReduceOp::max: return "max";
    case ReduceOp::product: return "product";
  }
  return "unknown";
}

std::string_view to_string(OperationKind kind) noexcept {
  switch (kind) {
    case OperationKind::all_reduce: return "all_reduce";
    case OperationKind::broadcast: return "broadcast";
    case OperationKind::reduce: return "reduce";
    case OperationKind::all_gather: return "all_gather";
    case OperationKind::all_gather_v: return "all_gather_v";
    case OperationKind::gather: return "gather";
    case OperationKind::scatter: return "scatter";
    case OperationKind::reduce_scatter: return "reduce_scatter";
    case OperationKind::all_to_all: return "all_to_all";
    case OperationKind::barrier: return "barrier";
    case OperationKind::send: return "send";
    case OperationKind::recv: return "recv";
  }
  return "unknown";
}

namespace {

bool reduces(OperationKind kind) {
  return kind == OperationKind::all_reduce || kind == OperationKind::reduce || kind == OperationKind::reduce_scatter;
}

bool rooted(OperationKind kind) {
  return kind == OperationKind::broadcast || kind == OperationKind::reduce || kind == OperationKind::gather ||
         kind == OperationKind::scatter;
}

}  // namespace

std::uint64_t Operation::fingerprint() const noexcept {
  std::uint64_t hash = 0xcbf29ce484222325U;
  const auto mix = [&](std::uint64_t value) {
    for (int i = 0; i < 8; ++i, value >>= 8U) hash = (hash ^ (value & 0xffU)) * 0x100000001b3U;
  };
  if (is_transfer()) {  // both ends must agree, so neither the kind nor the peer counts
    mix(1000);
    mix(tag);
  } else {
    mix(static_cast<std::uint64_t>(kind));
    mix(sequence);
  }
  mix(static_cast<std::uint64_t>(dtype));
  mix(count);
  if (reduces(kind)) mix(static_cast<std::uint64_t>(reduce_op));
  if (rooted(kind)) mix(static_cast<std::uint64_t>(root));
  for (const std::size_t part : counts) mix(part);
  return hash;
}

std::string Operation::description() const {
  std::string text(to_string(kind));
  if (sequence != 0) text += fmt::format(" #{}", sequence);
  if (kind == OperationKind::barrier) return text;
  text += counts.empty() ? fmt::format(" of {} x {}", to_string(dtype), count)
                         : fmt::format(" of {} x [{}]", to_string(dtype), fmt::join(counts, ", "));
  if (reduces(kind)) text += fmt::format(", {}", to_string(reduce_op));
  if (rooted(kind)) text += fmt::format(", root {}", root);
  if (kind == OperationKind::send) text += fmt::format(" to {}, tag {}", root, tag);
  if (kind == OperationKind::recv) text += fmt::format(" from {}, tag {}", root, tag);
  return text;
}

}  // namespace ddp
