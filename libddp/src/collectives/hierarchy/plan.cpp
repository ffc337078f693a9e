#include "collectives/hierarchy/plan.hpp"

#include <algorithm>
#include <map>

#include "collectives/reduce_kernels.hpp"

namespace ddp::collectives::hierarchy {
namespace {

// Few digits, as messages show it.
constexpr std::uint64_t kMarks = 100'000'000;

}  // namespace

void Job::plan(const Layout& layout, const Operation& operation, std::size_t segment_bytes) {
  *this = Job{};
  layout_ = &layout;
  operation_ = &operation;
  mark_ = operation.fingerprint() % kMarks;
  element_bytes_ = size_of(operation.dtype);
  const bool v = operation.kind == OperationKind::all_gather_v;
  const bool empty =
      v ? std::all_of(operation.counts.begin(), operation.counts.end(), [](std::size_t count) { return count == 0; })
        : operation.count == 0;
  // Nothing is to be moved, but a rank that called something else is to be noticed.
  if (empty) return plan_barrier(*this);
  switch (operation.kind) {
    case OperationKind::all_reduce: return plan_all_reduce(*this, segment_bytes);
    case OperationKind::broadcast: return plan_broadcast(*this, segment_bytes);
    case OperationKind::reduce: return plan_reduce(*this, segment_bytes);
    case OperationKind::all_gather:
    case OperationKind::all_gather_v: return plan_all_gather(*this, segment_bytes);
    case OperationKind::gather: return plan_gather(*this, segment_bytes);
    case OperationKind::scatter: return plan_scatter(*this, segment_bytes);
    case OperationKind::reduce_scatter: return plan_reduce_scatter(*this, segment_bytes);
    case OperationKind::all_to_all: return plan_all_to_all(*this, segment_bytes);
    case OperationKind::barrier:
    case OperationKind::send:
    case OperationKind::recv: return plan_barrier(*this);  // transfers are never planned
  }
}

Slice Job::slice(std::size_t segment, std::size_t total) const {
  const std::size_t first = std::min(segment * length_, total);
  return {first, std::min(length_, total - first)};
}

std::size_t Job::part_of(int rank) const {
  return operation_->kind == OperationKind::all_gather_v ? operation_->counts[static_cast<std::size_t>(rank)]
                                                         : operation_->count;
}

std::byte* Job::temporary(std::size_t segment, std::size_t elements) const {
  return temporary_ + (segment % kSlots) * slot_bytes_ + elements * element_bytes_;
}

bool Job::divides_before() const { return divisor() != 1 && divides_first(operation_->dtype); }
bool Job::divides_after() const { return divisor() != 1 && !divides_before(); }
double Job::divisor() const { return divisor_of(*operation_, layout_->size()); }

void Job::cut(std::size_t part, std::size_t copies, std::size_t segment_bytes) {
  length_ = std::max<std::size_t>(1, segment_bytes / (copies * element_bytes_));
  length_ = std::min(length_, part);
  segments_ = (part + length_ - 1) / length_;
}

std::uint8_t Job::add(Lane lane, int lag, unsigned needs, Step step, bool messages) {
  stages_[stage_count_] = {.lane = lane,
                           .lag = static_cast<std::uint8_t>(lag),
                           .needs = static_cast<std::uint8_t>(needs),
                           .messages = messages,
                           .step = step};
  return static_cast<std::uint8_t>(1U << stage_count_++);
}

Operation Job::collective(OperationKind kind, std::size_t count, int root) const {
  Operation made;
  made.kind = kind;
  made.dtype = operation_->dtype;
  // an average is a sum; the division is this level's
  made.reduce_op = operation_->reduce_op == ReduceOp::avg ? ReduceOp::sum : operation_->reduce_op;
  made.root = root;
  made.count = count;
  return made;
}

Operation Job::in_place(OperationKind kind, std::byte* values, std::size_t count, int root) const {
  Operation made = collective(kind, count, root);
  made.input = view(values, count);
  made.output = made.input;
  return made;
}

Operation Job::transfer(OperationKind kind, std::byte* values, std::size_t count, int peer, std::uint32_t tag) const {
  Operation made = collective(kind, count, peer);
  made.tag = tag;
  (kind == OperationKind::send ? made.input : made.output) = view(values, count);
  return made;
}

TensorView Job::view(std::byte* values, std::size_t count) const {
  return {values, operation_->dtype, {static_cast<std::int64_t>(count)}};
}

Layout::Layout(int rank, std::span<const int> labels) : rank_(rank) {
  std::map<int, int> domains;  // by label
  for (std::size_t each = 0; each < labels.size(); ++each) {
    const auto [place, first] = domains.emplace(labels[each], domains.size());
    if (first) members_.emplace_back();
    std::vector<int>& members = members_[static_cast<std::size_t>(place->second)];
    domain_of_.push_back(place->second);
    index_of_.push_back(static_cast<int>(members.size()));
    members.push_back(static_cast<int>(each));
    most_members_ = std::max(most_members_, members.size());
  }
}

}  // namespace ddp::collectives::hierarchy
