#include <ddp/operation.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/fnv1a.hpp"

namespace ddp {

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
  base::Fnv1a hash;
  if (is_transfer()) {  // both ends must agree, so neither the kind nor the peer counts
    hash.add(std::uint64_t{1000}).add(std::uint64_t{tag});
  } else {
    hash.add(static_cast<std::uint64_t>(kind)).add(sequence);
  }
  hash.add(static_cast<std::uint64_t>(dtype)).add(std::uint64_t{count});
  if (reduces(kind)) hash.add(static_cast<std::uint64_t>(reduce_op));
  if (rooted(kind)) hash.add(static_cast<std::uint64_t>(root));
  for (const std::size_t part : counts) hash.add(std::uint64_t{part});
  return hash.value();
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
