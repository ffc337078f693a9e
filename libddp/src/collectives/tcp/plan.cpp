#include "collectives/tcp/plan.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

namespace ddp::collectives::tcp {
namespace {

// Gathered bytes up to which log2(size) larger messages are faster than size - 1 smaller ones.
constexpr std::size_t kFewMessagesBytes = 64 * 1024;
// Of a broadcast that ranks pass on while the rest of it still arrives.
constexpr std::size_t kBroadcastSegmentBytes = 128 * 1024;

std::byte* bytes_of(const TensorView& view) { return static_cast<std::byte*>(view.data()); }

void copy_now(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes != 0 && to != from) std::memmove(to, from, bytes);
}

/// Data goes down a binomial tree, or along a chain where there are more segments than the chain has ranks.
void plan_broadcast(const Operation& operation, int rank, int size, Plan& plan) {
  const bool is_root = rank == operation.root;
  std::byte* const to = bytes_of(operation.output);
  const std::byte* const from = is_root ? bytes_of(operation.input) : to;
  const std::size_t bytes = is_root ? operation.input.size_bytes() : operation.output.size_bytes();
  if (is_root) copy_now(to, from, operation.output.size_bytes() == bytes ? bytes : 0);
  const std::size_t segments = (bytes + kBroadcastSegmentBytes - 1) / kBroadcastSegmentBytes;
  const auto depth = static_cast<std::size_t>(std::bit_width(static_cast<unsigned>(size - 1)));
  const bool chain = segments * (depth - 1) > static_cast<std::size_t>(size - 2);
  const int place = (rank - operation.root + size) % size;
  const auto rank_at = [&](int other) { return (other + operation.root) % size; };
  std::vector<int> children;  // those with the largest subtrees first
  if (chain) {
    if (place + 1 < size) children.push_back(rank_at(place + 1));
  } else {
    const unsigned lowest = place == 0 ? std::bit_ceil(static_cast<unsigned>(size))
                                       : static_cast<unsigned>(place) & -static_cast<unsigned>(place);
    for (unsigned step = lowest / 2; step != 0; step /= 2) {
      if (place + static_cast<int>(step) < size) children.push_back(rank_at(place + static_cast<int>(step)));
    }
  }
  const int parent = rank_at(chain ? place - 1 : place & (place - 1));
  for (std::size_t i = 0; i < segments; ++i) {
    const std::size_t first = i * kBroadcastSegmentBytes;
    const std::size_t size_of_segment = std::min(kBroadcastSegmentBytes, bytes - first);
    const auto step = static_cast<std::uint32_t>(i);
    if (!is_root) plan.receive(parent, step, to + first, size_of_segment);
    for (const int child : children) plan.send(child, step, from + first, size_of_segment, is_root ? 0 : i + 1);
  }
}

void plan_all_gather(const Operation& operation, int rank, int size, Plan& plan) {
  const std::size_t part = operation.input.size_bytes();
  const auto ranks = static_cast<std::size_t>(size);
  std::byte* const out = bytes_of(operation.output);
  const std::byte* const own = bytes_of(operation.input);
  if (size > 2 && part * ranks <= kFewMessagesBytes) {
    std::byte* const blocks = plan.scratch(part * ranks);
    std::memcpy(blocks, own, part);
    plan_bruck(blocks, part, rank, size, plan);
    const std::size_t all = plan.receives.size();
    const auto before = static_cast<std::size_t>(rank);  // ranks whose blocks are behind those of the last rank
    plan.copy(out + before * part, blocks, (ranks - before) * part, all);
    if (before != 0) plan.copy(out, blocks + (ranks - before) * part, before * part, all);
    return;
  }
  copy_now(out + static_cast<std::size_t>(rank) * part, own, part);
  for (int step = 1; step < size; ++step) {
    const int from = (rank + size - step) % size;
    plan.sink(from, 0, out + static_cast<std::size_t>(from) * part, part);
    plan.send((rank + step) % size, 0, own, part);
  }
}

void plan_all_gather_v(const Operation& operation, int rank, int size, Plan& plan) {
  const std::size_t width = size_of(operation.dtype);
  std::vector<std::size_t> first(static_cast<std::size_t>(size) + 1);
  for (std::size_t i = 0; i < operation.counts.size(); ++i) first[i + 1] = first[i] + operation.counts[i] * width;
  const auto bytes = [&](int other) {
    return first[static_cast<std::size_t>(other) + 1] - first[static_cast<std::size_t>(other)];
  };
  std::byte* const out = bytes_of(operation.output);
  const std::byte* const own = bytes_of(operation.input);
  copy_now(out + first[static_cast<std::size_t>(rank)], own, bytes(rank));
  for (int step = 1; step < size; ++step) {  // also empty parts: they show that all called the same
    const int from = (rank + size - step) % size;
    plan.sink(from, 0, out + first[static_cast<std::size_t>(from)], bytes(from));
    plan.send((rank + step) % size, 0, own, bytes(rank));
  }
}

void plan_gather(const Operation& operation, int rank, int size, Plan& plan) {
  const std::size_t part = operation.input.size_bytes();
  if (rank != operation.root) return plan.send(operation.root, 0, bytes_of(operation.input), part);
  std::byte* const out = bytes_of(operation.output);
  copy_now(out + static_cast<std::size_t>(rank) * part, bytes_of(operation.input), part);
  for (int peer = 0; peer < size; ++peer) {
    if (peer != rank) plan.sink(peer, 0, out + static_cast<std::size_t>(peer) * part, part);
  }
}

void plan_scatter(const Operation& operation, int rank, int size, Plan& plan) {
  const std::size_t part = operation.output.size_bytes();
  if (rank != operation.root) return plan.sink(operation.root, 0, bytes_of(operation.output), part);
  const std::byte* const in = bytes_of(operation.input);
  for (int step = 1; step < size; ++step) {
    const int peer = (rank + step) % size;
    plan.send(peer, 0, in + static_cast<std::size_t>(peer) * part, part);
  }
  // last: in place, output is the root's part of input
  copy_now(bytes_of(operation.output), in + static_cast<std::size_t>(rank) * part, part);
}

void plan_all_to_all(const Operation& operation, int rank, int size, Plan& plan) {
  const std::size_t part = operation.input.size_bytes() / static_cast<std::size_t>(size);
  const std::byte* const in = bytes_of(operation.input);
  std::byte* const out = bytes_of(operation.output);
  const std::size_t own = static_cast<std::size_t>(rank) * part;
  copy_now(out + own, in + own, part);
  for (int step = 1; step < size; ++step) {
    const int to = (rank + step) % size;
    const int from = (rank + size - step) % size;
    plan.sink(from, 0, out + static_cast<std::size_t>(from) * part, part);
    plan.send(to, 0, in + static_cast<std::size_t>(to) * part, part);
  }
}

bool reduces(OperationKind kind) {
  return kind == OperationKind::all_reduce || kind == OperationKind::reduce || kind == OperationKind::reduce_scatter;
}

/// One rank: its values are the result.
void plan_alone(const Operation& operation, Plan& plan) {
  if (operation.output.numel() == 0) return;
  if (!reduces(operation.kind)) {
    return copy_now(bytes_of(operation.output), bytes_of(operation.input), operation.output.size_bytes());
  }
  plan.reduction.emplace(operation, 1);
  plan.combine(bytes_of(operation.output), operation.count, 0);
  plan.source(operation.input.data());
}

}  // namespace

void Plan::clear() {
  receives.clear();
  sinks.clear();
  sends.clear();
  actions.clear();
  sources.clear();
  reduction.reset();
}

void Plan::receive(int peer, std::uint32_t step, std::byte* to, std::size_t bytes, std::size_t after_actions) {
  receives.push_back(
      {.message = {.step = step, .data = to, .bytes = bytes}, .peer = peer, .after_actions = after_actions});
}

void Plan::sink(int peer, std::uint32_t step, std::byte* to, std::size_t bytes, std::size_t after_actions) {
  sinks.push_back(
      {.message = {.step = step, .data = to, .bytes = bytes}, .peer = peer, .after_actions = after_actions});
}

void Plan::send(int peer, std::uint32_t step, const std::byte* from, std::size_t bytes, std::size_t after_receives,
                std::size_t after_actions) {
  sends.push_back({.message = {.frame = {.kind = FrameKind::collective, .step = step}, .data = from, .bytes = bytes},
                   .peer = peer,
                   .after_receives = after_receives,
                   .after_actions = after_actions});
}

void Plan::copy(std::byte* to, const void* from, std::size_t bytes, std::size_t after_receives, bool after_all_sends) {
  actions.push_back({.after_receives = after_receives,
                     .after_all_sends = after_all_sends,
                     .to = to,
                     .first_source = sources.size(),
                     .bytes = bytes});
  sources.push_back(from);
}

void Plan::combine(std::byte* to, std::size_t elements, std::size_t after_receives, bool after_all_sends) {
  actions.push_back({.after_receives = after_receives,
                     .after_all_sends = after_all_sends,
                     .to = to,
                     .first_source = sources.size(),
                     .num_sources = 0,
                     .elements = elements});
}

void Plan::source(const void* from) {
  sources.push_back(from);
  ++actions.back().num_sources;
}

std::byte* Plan::scratch(std::size_t bytes) {
  if (bytes > scratch_bytes_) {
    scratch_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
    scratch_bytes_ = bytes;
  }
  return scratch_.get();
}

void plan_bruck(std::byte* blocks, std::size_t part_bytes, int rank, int size, Plan& plan) {
  std::uint32_t step = 0;
  for (int have = 1; have < size; have += std::min(have, size - have), ++step) {
    const std::size_t bytes = static_cast<std::size_t>(std::min(have, size - have)) * part_bytes;
    plan.send((rank - have + size) % size, step, blocks, bytes, step);
    plan.receive((rank + have) % size, step, blocks + static_cast<std::size_t>(have) * part_bytes, bytes);
  }
}

void plan_barrier(int rank, int size, Plan& plan) {
  std::uint32_t step = 0;
  for (int distance = 1; distance < size; distance *= 2, ++step) {
    plan.send((rank + distance) % size, step, nullptr, 0, step);
    plan.receive((rank - distance + size) % size, step, nullptr, 0);
  }
}

void make_plan(const Operation& operation, int rank, int size, Plan& plan) {
  plan.clear();
  plan.element_bytes = size_of(operation.dtype);
  if (size == 1) return plan_alone(operation, plan);
  // without data, ranks that called something else are still found
  const bool empty =
      operation.kind == OperationKind::all_gather_v ? operation.output.numel() == 0 : operation.count == 0;
  if (empty) return plan_barrier(rank, size, plan);
  switch (operation.kind) {
    case OperationKind::all_reduce:
    case OperationKind::reduce:
    case OperationKind::reduce_scatter: return plan_reduction(operation, rank, size, plan);
    case OperationKind::broadcast: return plan_broadcast(operation, rank, size, plan);
    case OperationKind::all_gather: return plan_all_gather(operation, rank, size, plan);
    case OperationKind::all_gather_v: return plan_all_gather_v(operation, rank, size, plan);
    case OperationKind::gather: return plan_gather(operation, rank, size, plan);
    case OperationKind::scatter: return plan_scatter(operation, rank, size, plan);
    case OperationKind::all_to_all: return plan_all_to_all(operation, rank, size, plan);
    case OperationKind::barrier:
    case OperationKind::send:
    case OperationKind::recv: return plan_barrier(rank, size, plan);
  }
}

}  // namespace ddp::collectives::tcp
