#include "collectives/tcp/plan.hpp"

#include <algorithm>
#include <bit>
#include <cstring>

namespace ddp::collectives::tcp {
namespace {

// Up to this many gathered bytes, log2(size) larger messages are faster than size - 1 smaller ones.
constexpr std::size_t kFewMessagesBytes = 64 * 1024;
// A broadcast is cut into segments that ranks pass on while the rest still arrives.
constexpr std::size_t kBroadcastSegmentBytes = 128 * 1024;

std::byte* bytes_of(const TensorView& view) { return static_cast<std::byte*>(view.data()); }

void copy_now(std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes != 0 && to != from) std::memmove(to, from, bytes);
}

/// Data goes down a binomial tree, or along a chain if there are more segments than ranks in the chain.
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
  std::vector<int> children;  // largest subtrees first
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
    const auto before = static_cast<std::size_t>(rank);  // ranks whose blocks follow those of the last rank
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
  for (int step = 1; step < size; ++step) {  // empty parts, too: they show that all ranks called the same operation
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
  // copied last: in place, output is the root's part of input
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
  // even without data, detects ranks that called something else
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

// Reductions. Whatever the size, one rank makes a result from all ranks' values at once, in rank order, so its bits
// depend on nothing else. Small all_reduces: every rank gets all values and computes everything. Large ones: rank i
// gets part i straight from each rank and sends the result to all (reduce_scatter, all_gather), both in segments that
// stay in the processor's cache, and both at the same time.

namespace {

// Up to this size, one exchange of whole tensors between two ranks is faster than two of halves.
constexpr std::size_t kExchangeBytes = 64 * 1024;
// Up to this many gathered bytes, more than two ranks exchange everything.
constexpr std::size_t kGatheredBytes = 64 * 1024;
constexpr std::size_t kMostSegmentBytes = 128 * 1024;
constexpr std::size_t kLeastSegmentBytes = 4 * 1024;
constexpr std::size_t kStagingBytes = 2 * 1024 * 1024;
// Segments that this rank has room for, and segments that it sends before its own first result is complete.
constexpr std::size_t kSlots = 4;
constexpr std::size_t kAhead = 2;

const std::byte* input_of(const Operation& operation) { return static_cast<const std::byte*>(operation.input.data()); }
std::byte* output_of(const Operation& operation) { return static_cast<std::byte*>(operation.output.data()); }

/// Two ranks send each other everything.
void plan_exchange(const Operation& operation, int rank, std::size_t bytes, Plan& plan) {
  std::byte* const theirs = plan.scratch(bytes);
  const int peer = 1 - rank;
  plan.receive(peer, 0, theirs, bytes);
  plan.send(peer, 0, input_of(operation), bytes);
  plan.combine(output_of(operation), operation.count, 1, operation.input.data() == operation.output.data());
  plan.source(rank == 0 ? input_of(operation) : theirs);
  plan.source(rank == 0 ? theirs : input_of(operation));
}

void plan_gathered(const Operation& operation, int rank, int size, std::size_t bytes, Plan& plan) {
  std::byte* const blocks = plan.scratch(bytes * static_cast<std::size_t>(size));
  std::memcpy(blocks, input_of(operation), bytes);
  plan_bruck(blocks, bytes, rank, size, plan);
  plan.combine(output_of(operation), operation.count, plan.receives.size());
  for (int other = 0; other < size; ++other) {
    plan.source(blocks + static_cast<std::size_t>((other - rank + size) % size) * bytes);
  }
}

void plan_small_reduce(const Operation& operation, int rank, int size, std::size_t bytes, Plan& plan) {
  if (rank != operation.root) return plan.send(operation.root, 0, input_of(operation), bytes);
  std::byte* const blocks = plan.scratch(bytes * static_cast<std::size_t>(size));
  for (int peer = 0; peer < size; ++peer) {
    if (peer != rank) plan.receive(peer, 0, blocks + static_cast<std::size_t>(peer) * bytes, bytes);
  }
  plan.combine(output_of(operation), operation.count, plan.receives.size());
  for (int other = 0; other < size; ++other) {
    plan.source(other == rank ? input_of(operation) : blocks + static_cast<std::size_t>(other) * bytes);
  }
}

/// The tensor cut into one part per rank, and each part into segments of equal size.
class Parts {
 public:
  Parts(const Operation& operation, int rank, int size) : rank_(rank), size_(size), width_(size_of(operation.dtype)) {
    const auto ranks = static_cast<std::size_t>(size);
    const bool equal = operation.kind == OperationKind::reduce_scatter;
    std::size_t longest = 0;
    for (std::size_t i = 0; i <= ranks; ++i) {
      first_.push_back(
          (equal ? operation.count * i : operation.count / ranks * i + std::min(operation.count % ranks, i)) * width_);
      if (i > 0) longest = std::max(longest, first_[i] - first_[i - 1]);
    }
    segment_bytes_ = std::clamp(kStagingBytes / (kSlots * (ranks - 1)), kLeastSegmentBytes, kMostSegmentBytes);
    segment_bytes_ -= segment_bytes_ % 64;
    segments_ = (longest + segment_bytes_ - 1) / segment_bytes_;
  }

  int peer(int step) const { return (rank_ + step) % size_; }
  std::size_t segments() const { return segments_; }
  std::size_t offset(int part, std::size_t segment) const {
    return first_[static_cast<std::size_t>(part)] + segment * segment_bytes_;
  }
  std::size_t bytes(int part, std::size_t segment) const {
    const std::size_t end = first_[static_cast<std::size_t>(part) + 1];
    const std::size_t begin = offset(part, segment);
    return begin < end ? std::min(segment_bytes_, end - begin) : 0;
  }
  std::size_t width() const { return width_; }
  std::size_t staging_bytes() const { return kSlots * static_cast<std::size_t>(size_ - 1) * segment_bytes_; }
  std::byte* slot(std::byte* staging, std::size_t segment, int step) const {
    return staging + (segment % kSlots * static_cast<std::size_t>(size_ - 1) + static_cast<std::size_t>(step - 1)) *
                         segment_bytes_;
  }

 private:
  int rank_;
  int size_;
  std::size_t width_;
  std::vector<std::size_t> first_;
  std::size_t segment_bytes_ = 0;
  std::size_t segments_ = 0;
};

std::uint32_t value_step(std::size_t segment) { return static_cast<std::uint32_t>(segment * 2); }
std::uint32_t result_step(std::size_t segment) { return static_cast<std::uint32_t>(segment * 2 + 1); }

void plan_parts(const Operation& operation, int rank, int size, Plan& plan) {
  const Parts parts(operation, rank, size);
  const bool is_root = rank == operation.root;
  const bool rooted = operation.kind == OperationKind::reduce;
  const bool all = operation.kind == OperationKind::all_reduce;
  const std::byte* const in = input_of(operation);
  const std::size_t own_offset = parts.offset(rank, 0);
  // where this rank's results go: a non-root of an in-place reduce may overwrite its tensor
  const bool elsewhere = rooted && !is_root && operation.input.data() != operation.output.data();
  const std::size_t own_bytes = parts.offset(rank + 1, 0) - own_offset;
  std::byte* const staging = plan.scratch(parts.staging_bytes() + (elsewhere ? own_bytes : 0));
  std::byte* own = elsewhere ? staging + parts.staging_bytes() : output_of(operation);
  if (!elsewhere && operation.kind != OperationKind::reduce_scatter) own += own_offset;

  const auto gets_results = [&](int peer) { return all || (rooted && peer == operation.root); };
  const auto after = [](std::size_t segment, std::size_t window) {
    return segment < window ? 0 : segment - window + 1;
  };
  const auto send_values = [&](std::size_t segment) {
    for (int step = 1; step < size && segment < parts.segments(); ++step) {
      const int peer = parts.peer(step);
      const std::size_t bytes = parts.bytes(peer, segment);
      if (bytes == 0) continue;
      plan.send(peer, value_step(segment), in + parts.offset(peer, segment), bytes, 0, after(segment, kAhead));
    }
  };
  for (std::size_t segment = 0; segment < kAhead; ++segment) send_values(segment);
  for (std::size_t segment = 0; segment < parts.segments(); ++segment) {
    const std::size_t bytes = parts.bytes(rank, segment);
    std::byte* const result = own + (parts.offset(rank, segment) - own_offset);
    for (int step = 1; step < size && bytes != 0; ++step) {
      plan.receive(parts.peer(step), value_step(segment), parts.slot(staging, segment, step), bytes,
                   after(segment, kSlots));
    }
    if (bytes != 0) {
      plan.combine(result, bytes / parts.width(), plan.receives.size());
      for (int other = 0; other < size; ++other) {
        const int step = (other - rank + size) % size;
        plan.source(step == 0 ? in + parts.offset(rank, segment) : parts.slot(staging, segment, step));
      }
    } else {
      plan.copy(nullptr, nullptr, 0, plan.receives.size());
    }
    for (int step = 1; step < size; ++step) {
      const int peer = parts.peer(step);
      if (gets_results(peer) && bytes != 0) plan.send(peer, result_step(segment), result, bytes, 0, segment + 1);
      const std::size_t theirs = parts.bytes(peer, segment);
      if (!gets_results(rank) || theirs == 0) continue;
      plan.sink(peer, result_step(segment), output_of(operation) + parts.offset(peer, segment), theirs,
                after(segment, kAhead));
    }
    send_values(segment + kAhead);
  }
}

}  // namespace

void plan_reduction(const Operation& operation, int rank, int size, Plan& plan) {
  plan.reduction.emplace(operation, size);
  const std::size_t bytes = operation.count * size_of(operation.dtype);
  const bool little = bytes <= kGatheredBytes / static_cast<std::size_t>(size);
  if (operation.kind == OperationKind::all_reduce && size == 2 && bytes <= kExchangeBytes)
    return plan_exchange(operation, rank, bytes, plan);
  if (operation.kind == OperationKind::all_reduce && size > 2 && little)
    return plan_gathered(operation, rank, size, bytes, plan);
  if (operation.kind == OperationKind::reduce && little) return plan_small_reduce(operation, rank, size, bytes, plan);
  plan_parts(operation, rank, size, plan);
}

}  // namespace ddp::collectives::tcp
