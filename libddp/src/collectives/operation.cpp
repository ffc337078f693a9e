#include <ddp/operation.hpp>

#include <bit>

#include <fmt/format.h>
#include <fmt/ranges.h>

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

/// A step of a hash. Small collectives wait for it, so it takes a word at a time; and it can be undone, so that
/// operations that differ in one word always differ in the end.
std::uint64_t mixed(std::uint64_t hash, std::uint64_t word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15U;  // 2^64 / golden ratio, odd
  return hash ^ hash >> 32U;
}

}  // namespace

std::uint64_t Operation::fingerprint() const noexcept {
  // Both ends of a transfer must agree, so neither its kind nor the peer counts.
  const auto kinds = is_transfer() ? std::uint64_t{0xff} : static_cast<std::uint64_t>(kind);
  std::uint64_t word = kinds | static_cast<std::uint64_t>(dtype) << 8U;
  if (reduces(kind)) word |= static_cast<std::uint64_t>(reduce_op) << 16U;
  if (rooted(kind)) word |= std::uint64_t{static_cast<std::uint32_t>(root)} << 32U;
  std::uint64_t hash = mixed(mixed(0, word), is_transfer() ? tag : sequence);
  if (is_transfer() && sequence != 0) hash = mixed(hash, sequence);  // a part of a collective
  hash = mixed(hash, count);
  if (prescale != 1) hash = mixed(hash, std::bit_cast<std::uint64_t>(prescale));
  for (const std::size_t part : counts) hash = mixed(hash, part);
  return hash;
}

std::string Operation::description() const {
  std::string text(to_string(kind));
  if (part_of != nullptr) text = fmt::format("{}: {}", part_of, text);
  if (sequence != 0) text += fmt::format(" #{}", sequence);
  if (kind == OperationKind::barrier) return text;
  text += counts.empty() ? fmt::format(" of {} x {}", to_string(dtype), count)
                         : fmt::format(" of {} x [{}]", to_string(dtype), fmt::join(counts, ", "));
  if (reduces(kind)) text += fmt::format(", {}", to_string(reduce_op));
  if (prescale != 1) text += fmt::format(" times {}", prescale);
  if (rooted(kind)) text += fmt::format(", root {}", root);
  if (!is_transfer()) return text;
  text += fmt::format(" {} {}", kind == OperationKind::send ? "to" : "from", root);
  if (part_of == nullptr) text += fmt::format(", tag {}", tag);
  return text;
}

}  // namespace ddp
