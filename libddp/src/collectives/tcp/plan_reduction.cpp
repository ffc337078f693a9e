// Reductions. Whatever the size, a result is made by one rank of all ranks' values at once, in rank order: so its bits
// depend on nothing else. Small all_reduces: every rank gets all values and computes everything. Large ones: rank i
// gets part i of everybody, straight from each, and sends the result to everybody (reduce_scatter, all_gather), both in
// segments that stay in the processor's cache, and both at the same time.
#include <algorithm>
#include <cstring>

#include "collectives/tcp/plan.hpp"

namespace ddp::collectives::tcp {
namespace {

// Up to so much, one exchange of whole tensors between two ranks is faster than two of halves.
constexpr std::size_t kExchangeBytes = 64 * 1024;
// Gathered bytes up to which more ranks exchange everything.
constexpr std::size_t kGatheredBytes = 64 * 1024;
constexpr std::size_t kMostSegmentBytes = 128 * 1024;
constexpr std::size_t kLeastSegmentBytes = 4 * 1024;
constexpr std::size_t kStagingBytes = 2 * 1024 * 1024;
// Segments that this rank has room for, and those that it sends before its own results of the first are complete.
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

/// The tensor cut into a part a rank, and each part into segments of the same size.
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
  // where this rank's results go: a non-root of a reduce may overwrite its tensor if that is in place
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
